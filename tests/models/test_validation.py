"""A model that does not fit is refused before a run computes anything, and the error says what to change."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.models import custom
from fedaf.models.validation import validate
from fedaf.models.weights import initialise
from fedaf.protocol import Architecture, Key, Task
from support import zoo
from support.errors import raises
from support.zoo import build

TASK = Task("tiny", 1, 8, 8, 3, mean=(0.5,), std=(0.25,))


class Base(nn.Module):
    """An MLP that passes. Each model below breaks one rule."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 6), nn.Linear(6, 3)

    def features(self, images: Tensor) -> Tensor:
        return F.relu(self.hidden(images.flatten(1)))

    def forward(self, images: Tensor):
        return self.head(self.features(images))


class FailsInTraining(Base):
    def features(self, images):
        return super().features(images) if not self.training else images @ images.new_zeros(3, 3)


class OtherSize(Base):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(100, 6)


class Squeezes(Base):
    def forward(self, images):
        return super().forward(images).squeeze()


class Pair(Base):
    def forward(self, images):
        return super().forward(images), images


class TooManyClasses(Base):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)


class Whole(Base):
    def forward(self, images):
        return super().forward(images).argmax(1, keepdim=True).expand(-1, 3)


class Infinite(Base):
    def forward(self, images):
        return super().forward(images) / 0


class NoLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 8)

    def forward(self, images):
        return self.conv(images).flatten(1)


class HeadTwice(Base):
    def forward(self, images):
        features = self.features(images)
        return self.head(features) + self.head(features.square())


class Folded(Base):
    """The head gets each half of an image as a separate row."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(32, 6)

    def forward(self, images):
        return self.head(F.relu(self.hidden(images.reshape(-1, 32)))).view(len(images), 2, 3).mean(1)


class Untrained(Base):
    def features(self, images):
        return images.flatten(1)[:, :6]


class Frozen(Base):
    def __init__(self):
        super().__init__()
        self.hidden.requires_grad_(False)


class Detached(Base):
    def features(self, images):
        return super().features(images.detach())


class Tied(Base):
    def __init__(self):
        super().__init__()
        self.other = nn.Linear(64, 6)
        self.other.weight = self.hidden.weight


class Lazy(Base):
    def __init__(self):
        super().__init__()
        self.hidden = nn.LazyLinear(6)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.by = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return x * self.by


class WithoutReset(Base):
    def __init__(self):
        super().__init__()
        self.scale = Scale()

    def features(self, images):
        return self.scale(super().features(images))


class RootWithoutReset(Base):
    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(6))


class ForgetsOne(Base):
    def __init__(self):
        super().__init__()
        self.token, self.other = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))

    def reset_parameters(self):
        nn.init.ones_(self.token)


class ResetRaises(Base):
    def reset_parameters(self):
        raise ValueError("not today")


class Double(Base):
    def __init__(self):
        super().__init__()
        self.head.double()


class ComplexBuffer(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))


class ExtraState(Base):
    def get_extra_state(self):
        return {"notes": "mine"}

    def set_extra_state(self, state):
        pass


class ResetByNumpy(Base):
    def reset_parameters(self):
        nn.init.constant_(self.head.bias, np.random.default_rng().random())


class ForwardByPython(Base):
    def features(self, images):
        return super().features(images) * (random.random() if self.training else 1)


class AlwaysDrops(Base):
    def features(self, images):
        return F.dropout(super().features(images))


class NormalisesTheBatch(Base):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6, track_running_stats=False, affine=False)

    def features(self, images):
        x = super().features(images)
        return self.norm(x) if len(x) > 1 else x


class InPlace(Base):
    def features(self, images):
        return super().features(images.sub_(images.mean((1, 2, 3), keepdim=True)))


class PairOfFeatures(Base):
    """The input of its last layer is not a tensor."""

    class Last(nn.Linear):
        def forward(self, pair):
            return super().forward(pair[0])

    def __init__(self):
        super().__init__()
        self.head = self.Last(6, 3)

    def forward(self, images):
        return self.head((self.features(images), None))


class Keyed(Base):
    def forward(self, images):
        features = self.features(images)
        return {"logits": self.head(features), "features": features}


class Heads(Base):
    """Two heads on two sets of features; the logits are their sum."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(6, 3)

    def forward(self, images):
        features = self.features(images)
        return self.other(features.square()) + self.head(features)


class HeadsApart(Heads):
    """The first head gives the logits, the last one something else."""

    def forward(self, images):
        features = self.features(images)
        return self.head(features), self.other(features)


class SeveralDouble(Base):
    def __init__(self):
        super().__init__()
        self.double()


class SeveralWithoutReset(Base):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = Scale(), Scale()


class ForgetsTwo(ForgetsOne):
    def reset_parameters(self):
        pass


#: What is wrong with each model: the error's code, and what its message names.
FAULTS = {
    InPlace: ("FORWARD", ["InPlace"]),
    PairOfFeatures: ("FEATURES", ["PairOfFeatures", "AttributeError", "model.classifier"]),
    OtherSize: ("FORWARD", ["OtherSize", "2 images of 1x8x8 in eval mode", "RuntimeError", "[N, 1, 8, 8]"]),
    FailsInTraining: ("FORWARD", ["FailsInTraining", "2 images of 1x8x8 in train mode"]),
    Squeezes: ("OUTPUT", ["Squeezes in eval mode", "float32 [3]", "[1, 3]"]),
    Pair: ("OUTPUT", ["Pair", "tuple of 0 (float32 [2, 3]) and 1 (float32 [2, 1, 8, 8])", "model.output"]),
    Keyed: ("OUTPUT", ["Keyed", "logits (float32 [2, 3])", "features", "model.output"]),
    Heads: ("CLASSIFIER", ["Heads", "other and head", "model.classifier=head"]),
    SeveralDouble: ("TENSORS", ["hidden.weight, hidden.bias, head.weight, head.bias", "float64"]),
    SeveralWithoutReset: ("RESET", ["scale (Scale)", "shift (Scale)", "reset_parameters"]),
    ForgetsTwo: ("RESET", ["token, other"]),
    TooManyClasses: ("OUTPUT", ["TooManyClasses", "float32 [2, 4]", "[2, 3]"]),
    Whole: ("OUTPUT", ["Whole", "int64 [2, 3]", "float32"]),
    Infinite: ("OUTPUT", ["Infinite", "not finite"]),
    NoLinear: ("CLASSIFIER", ["Linear", "model.classifier"]),
    HeadTwice: ("CLASSIFIER", ["'head'", "2 times", "model.classifier"]),
    Folded: ("FEATURES", ["Folded", "[4, 6] for 2 images", "model.classifier"]),
    Detached: ("FEATURES", ["the features of the model Detached", "gradient"]),
    Tied: ("TENSORS", ["Tied", "hidden.weight and other.weight"]),
    Lazy: ("TENSORS", ["Lazy", "hidden.weight"]),
    WithoutReset: ("RESET", ["WithoutReset", "scale (Scale)", "parameter by", "reset_parameters(self)"]),
    RootWithoutReset: ("RESET", ["RootWithoutReset", "token", "reset_parameters(self)"]),
    ForgetsOne: ("RESET", ["ForgetsOne", "other"]),
    ResetRaises: ("RESET", ["ValueError: not today"]),
    Double: ("TENSORS", ["Double", "head.weight", "float64", "float32"]),
    ComplexBuffer: ("TENSORS", ["ComplexBuffer", "buffer phase"]),
    ExtraState: ("TENSORS", ["ExtraState", "_extra_state"]),
    ResetByNumpy: ("RANDOM", ["ResetByNumpy", "head.bias", "reset_parameters"]),
    ForwardByPython: ("RANDOM", ["ForwardByPython", "train mode"]),
    AlwaysDrops: ("EVAL", ["AlwaysDrops", "training=self.training"]),
    NormalisesTheBatch: ("EVAL", ["NormalisesTheBatch", "running statistics"]),
}


def checked(made, classifier: str | None = None, task: Task = TASK, output: int | str | None = None) -> Architecture:
    """Validate as a run does: a factory makes the model, and every network is a copy with fresh weights."""
    architecture = custom.architecture(
        made, task, Key(0), name="mine", classifier=classifier, keep_weights=False, output=output
    )
    validate(architecture, task)
    return architecture


@contextmanager
def refused(code: str, words: list[str]) -> Iterator[None]:
    """In the block, a model must be refused with this code, in one sentence that names these words."""
    with raises(f"FEDAF-MODEL-{code}") as error:
        yield
    text = str(error.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_a_model_that_fits_passes():
    checked(lambda *_: Base())


@pytest.mark.parametrize("model", FAULTS, ids=lambda model: model.__name__)
def test_a_model_that_does_not_fit_is_refused(model):
    random.seed(0)  # two draws of ForwardByPython must not be equal by chance
    with refused(*FAULTS[model]):
        checked(lambda *_: model())


@pytest.mark.parametrize(
    ("model", "classifier", "code", "words"),
    [
        (Base, "top", "CLASSIFIER", ["'top'", "hidden, head"]),
        (WithoutReset, "scale.by", "RESET", ["reset_parameters"]),
        (HeadTwice, "head", "CLASSIFIER", ["'head'", "2 times"]),
    ],
)
def test_a_named_classifier_that_does_not_fit_is_refused(model, classifier, code, words):
    with refused(code, words):
        checked(lambda *_: model(), classifier)


@pytest.mark.parametrize(("model", "output"), [(Pair, 0), (Keyed, "logits"), (Base, 0)])
def test_one_of_several_outputs_can_be_chosen(model, output):
    images = torch.randn(2, 1, 8, 8, generator=Key(0).torch())
    network = checked(lambda *_: model(), output=output).build(Key(1)).eval()
    assert torch.equal(network(images), Base.forward(network, images))
    assert network.state_dict().keys() == Base().state_dict().keys()


@pytest.mark.parametrize(("output", "shown"), [(2, "2"), ("logit", "'logit'")])
def test_an_output_that_is_not_there_is_refused_with_those_that_are(output, shown):
    with refused("OUTPUT", [f"model.output is {shown}", "logits (float32 [2, 3])", "features"]):
        checked(lambda *_: Keyed(), output=output)


def test_a_model_of_two_heads_is_asked_for_its_classifier():
    with refused("CLASSIFIER", ["HeadsApart", "head", "other", "model.classifier=head"]):
        checked(lambda *_: HeadsApart(), output=0)
    checked(lambda *_: HeadsApart(), "head", output=0)
    checked(lambda *_: HeadsApart(), output=1)
    checked(lambda *_: Heads(), "head")


def test_a_hidden_layer_as_wide_as_there_are_classes_is_no_second_head():
    hidden = (nn.Flatten(), nn.Linear(64, 3), nn.ReLU(), nn.Linear(3, 3))
    checked(lambda *_: nn.Sequential(*hidden))


class NeverCalled(Base):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(6, 3)


def test_a_classifier_that_is_never_called_is_refused():
    checked(lambda *_: NeverCalled())
    with refused("CLASSIFIER", ["'spare'", "never called", "model.classifier"]):
        checked(lambda *_: NeverCalled(), "spare")


def test_a_classifier_need_not_be_linear():
    made = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 6), nn.Flatten())
    checked(lambda *_: made, "2")


def test_a_factory_that_draws_outside_torch_is_refused():
    def buffered(*_):
        model = Base()
        model.register_buffer("noise", torch.tensor(np.random.default_rng().random(3)))
        return model

    def randomly_wide(*_):
        widths.append(len(widths) + 1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, widths[-1]), nn.Linear(widths[-1], 3))

    widths: list[int] = []
    for made, where in ((buffered, "noise"), (randomly_wide, "1.weight")):
        with refused("RANDOM", ["'mine'", where]):
            checked(made)


def test_a_model_that_cannot_be_copied_is_refused():
    def stuck(*_):
        model = Base()
        model.last = model(torch.zeros(1, 1, 8, 8))
        return model

    with refused("COPY", ["'mine'", "RuntimeError"]):
        checked(stuck)


def test_a_model_that_remembers_its_last_features_fits():
    class Remembers(Base):
        def features(self, images):
            self.last = super().features(images)
            return self.last

    checked(lambda *_: Remembers())


@pytest.mark.parametrize("size", [(8, 8), (12, 20)])
@pytest.mark.parametrize("name", zoo.ALL)
def test_every_network_of_the_zoo_fits(name, size):
    checked(zoo.ALL[name], task=Task("tiny", 3, *size, 5, mean=(0.5,) * 3, std=(0.25,) * 3))


@pytest.mark.parametrize(
    ("name", "norm"),
    [
        ("convnet", "batch"),
        ("convnet", "group"),
        ("convnet", "instance"),
        ("convnet", "none"),
        ("resnet18", "batch"),
        ("resnet18", "group"),
    ],
)
def test_the_built_in_networks_fit(name, norm):
    task = Task("tiny", 3, 8, 8, 5, mean=(0.5,) * 3, std=(0.25,) * 3)
    validate(Architecture(lambda key: build(name, task, key, depth=3, width=8, norm=norm)), task)


def test_something_must_be_trained():
    with refused("TENSORS", ["requires_grad"]):
        checked(lambda *_: Base().requires_grad_(False))


@pytest.mark.parametrize("model", [Untrained, Frozen])
def test_a_classifier_alone_may_be_trained(model):
    checked(lambda *_: model())


def test_validation_leaves_the_callers_generator_as_it_was():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    checked(zoo.dropout)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("name", zoo.ALL)
def test_every_parameter_is_drawn_from_the_key_and_not_from_its_old_value(name):
    first, second = (zoo.ALL[name](1, 8, 3) for _ in range(2))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.fill_(torch.nan)
    initialise(first, Key(1))
    initialise(second, Key(1))
    assert custom.first_difference(first, second) is None
    assert custom.first_difference(first, initialise(second, Key(2))) is not None
