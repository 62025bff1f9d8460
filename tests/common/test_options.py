"""Options with other defaults in a derived table."""

import pytest
from pydantic import Field, ValidationError

from fedaf.common.options import Options, with_defaults
from fedaf.methods.fedaf import FedAFOptions
from fedaf.methods.fedaf_plus import FedAFPlusOptions


class Base(Options):
    size: int = Field(3, ge=1, le=10, description="how many")
    rate: float | None = Field(None, gt=0, description="how fast")
    name: str = "plain"


@with_defaults(size=7, rate=0.5)
class Derived(Base):
    """The same options with other defaults."""

    more: bool = False


def test_defaults_are_replaced_and_everything_else_stays():
    assert Derived().model_dump() == {"size": 7, "rate": 0.5, "name": "plain", "more": False}
    for name, field in Base.model_fields.items():
        ours = Derived.model_fields[name]
        assert (ours.description, ours.metadata, ours.annotation) == (
            field.description,
            field.metadata,
            field.annotation,
        )
    for wrong in ({"size": 0}, {"size": 11}, {"size": "7"}, {"rate": 0.0}, {"other": 1}):
        with pytest.raises(ValidationError):
            Derived(**wrong)
    assert Derived(size=10, rate=None).model_dump() == {"size": 10, "rate": None, "name": "plain", "more": False}
    with pytest.raises(ValidationError):
        Derived().size = 5


def test_the_base_class_is_unchanged():
    assert Base().model_dump() == {"size": 3, "rate": None, "name": "plain"}
    assert Base.model_fields["size"].default == 3


def test_a_class_derived_from_it_inherits_the_new_defaults():
    @with_defaults(name="leaf")
    class Leaf(Derived):
        pass

    assert Leaf().model_dump() == {"size": 7, "rate": 0.5, "name": "leaf", "more": False}
    assert Derived().name == "plain"


@pytest.mark.parametrize("wrong", [{"size": 11}, {"size": "7"}, {"rate": -1.0}])
def test_a_default_that_is_not_valid_raises(wrong):
    with pytest.raises(ValidationError, match=next(iter(wrong))):

        @with_defaults(**wrong)
        class Wrong(Base):
            pass


def test_a_default_of_an_unknown_option_raises():
    with pytest.raises(KeyError, match="sise"):

        @with_defaults(sise=4)
        class Wrong(Base):
            pass


def test_fedaf_plus_has_the_options_of_fedaf_with_other_defaults():
    assert FedAFPlusOptions.model_fields.keys() == FedAFOptions.model_fields.keys()
    for name, field in FedAFOptions.model_fields.items():
        ours = FedAFPlusOptions.model_fields[name]
        assert (ours.description, ours.metadata) == (field.description, field.metadata)
    changed = {n for n in FedAFOptions.model_fields if getattr(FedAFPlusOptions(), n) != getattr(FedAFOptions(), n)}
    assert changed == {
        "resampling",
        "lambda_loc",
        "match_spread",
        "match_distribution",
        "image_lr_decay",
        "continue_images",
        "init",
        "match_clusters",
        "replay",
        "server_steps",
        "server_average",
        "server_cutmix",
        "server_weighting",
    }
