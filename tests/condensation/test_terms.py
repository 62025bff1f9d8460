"""Terms of the image loss: any number of them, each on its own or switched off."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedaf.condensation.condenser import Condensed, Objective, condense
from fedaf.condensation.jobs import Job
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.terms import (
    Pairs,
    Term,
    distributions_distance,
    features_and_logits_distance,
    features_distance,
    targets_distance,
)
from fedaf.engine import EagerEngine
from fedaf.models.backbone import Backbone
from fedaf.protocol import Key, Shard, Task

CPU = torch.device("cpu")
TASK = Task("tiny", 1, 2, 2, 3, mean=(0.5,), std=(0.25,))
OPTIONS = CondensationOptions(ipc=2, init="noise", local_steps=1, real_batch=4, image_lr=0.1, image_momentum=0.0)
SHARD = Shard(torch.full((6, 1, 2, 2), 99, dtype=torch.uint8), torch.arange(6) % 3, 3)
JOB = Job(SHARD, [0, 2], torch.randn(2, 2, 1, 2, 2, generator=Key(0).torch()), Key(1))
FEATURES = Term("dm", features_distance)


class OneNetwork:
    def __init__(self, model: nn.Module) -> None:
        self._weights = model.state_dict()

    def draw(self, step: int) -> None:
        pass

    def weights(self) -> dict[str, Tensor]:
        return self._weights


def condensed(*terms: Term, job: Job = JOB) -> Condensed:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    torch.nn.init.ones_(model[1].weight)
    objective = Objective(Backbone(model, TASK, CPU), OneNetwork(model), terms)
    (result,) = condense([job], objective, options=OPTIONS, task=TASK, engine=EagerEngine(CPU))
    return result


def brightness(pairs: Pairs) -> Tensor:
    """Its gradient is 1/2 for each pixel of the two images: the features are the pixels."""
    return pairs.features.sum(-1).mean(-1)


def test_a_new_term_is_one_function_and_moves_the_images_by_its_weight():
    plain, more = condensed(FEATURES), condensed(FEATURES, Term("brightness", brightness, weight=3.0))
    torch.testing.assert_close(more.images, plain.images - 0.1 * 3 / 2)
    assert more.losses == {**plain.losses, "brightness": pytest.approx(float(JOB.images.sum() / 4), rel=1e-5)}
    assert more.gradient_ratios.keys() == {"brightness"}
    twice = condensed(FEATURES, Term("brightness", brightness, weight=6.0))
    assert twice.losses == more.losses
    assert twice.gradient_ratios["brightness"] == pytest.approx(2 * more.gradient_ratios["brightness"], rel=1e-5)


def test_a_term_that_is_switched_off_is_not_computed_and_reported_as_zero():
    def never(pairs: Pairs) -> Tensor:
        raise AssertionError

    plain, off = condensed(FEATURES), condensed(FEATURES, Term("off", never, weight=None))
    assert torch.equal(off.images, plain.images)
    assert (off.losses, off.gradient_ratios) == ({**plain.losses, "off": 0.0}, {"off": 0.0})


def test_a_term_of_weight_zero_is_reported_and_moves_nothing():
    plain, weightless = condensed(FEATURES), condensed(FEATURES, Term("brightness", brightness, weight=0.0))
    torch.testing.assert_close(weightless.images, plain.images)
    assert weightless.losses["brightness"] != 0
    assert weightless.gradient_ratios["brightness"] == 0


def test_real_logits_are_there_where_a_term_asks_for_them():
    seen: list[Tensor | None] = []

    def look(pairs: Pairs) -> Tensor:
        seen.append(pairs.real_logits)
        return features_distance(pairs)

    condensed(Term("dm", look))
    assert not any(logits is not None for logits in seen)
    condensed(Term("dm", look, real_logits=True))
    assert seen[-1].shape == (2, 4, 3)


@pytest.mark.parametrize("value", [targets_distance, features_and_logits_distance, distributions_distance])
def test_a_term_without_what_it_needs_says_so(value):
    with pytest.raises(ValueError, match="this term needs"):
        condensed(Term("odd", value))
    condensed(Term("even", value, real_logits=True, directions=True), job=replace(JOB, targets=torch.zeros(2, 3)))
