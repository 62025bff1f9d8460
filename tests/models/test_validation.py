"""A model that does not fit says so before anything is computed, in one sentence with what to do."""

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.models import custom as own
from fedaf.models.validation import validate
from fedaf.models.weights import initialise
from fedaf.protocol import Architecture, Key, Task, UserError
from support import zoo
from support.zoo import build

TASK = Task("tiny", 1, 8, 8, 3, mean=(0.5,), std=(0.25,))


class Base(nn.Module):
    """Fits: an MLP. Each of the models below spoils one thing."""

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
    """The head sees every half of an image as a row of its own."""

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
    """Its last layer takes something that is no tensor."""

    class Last(nn.Linear):
        def forward(self, pair):
            return super().forward(pair[0])

    def __init__(self):
        super().__init__()
        self.head = self.Last(6, 3)

    def forward(self, images):
        return self.head((self.features(images), None))


SENTENCES = {
    InPlace: ["InPlace changes the images it is given"],
    PairOfFeatures: ["PairOfFeatures gives no features", "AttributeError", "model.classifier"],
    OtherSize: ["OtherSize fails", "2 images of 1x8x8 in eval mode", "RuntimeError", "[N, 1, 8, 8]"],
    FailsInTraining: ["FailsInTraining fails", "2 images of 1x8x8 in train mode"],
    Squeezes: ["Squeezes in eval mode gives float32 [3]", "[1, 3]"],
    Pair: ["Pair", "gives a tuple", "[2, 3]"],
    TooManyClasses: ["TooManyClasses", "float32 [2, 4]", "[2, 3]"],
    Whole: ["Whole", "int64 [2, 3]", "float32"],
    Infinite: ["Infinite", "not finite"],
    NoLinear: ["no Linear", "model.classifier"],
    HeadTwice: ["'head' is called 2 times", "model.classifier"],
    Folded: ["features of the model Folded", "[4, 6] for 2 images", "model.classifier"],
    Detached: ["features of the model Detached", "no gradient to its images"],
    Tied: ["Tied", "hidden.weight and other.weight", "two names"],
    Lazy: ["Lazy", "hidden.weight", "input size"],
    WithoutReset: ["WithoutReset", "its module scale (Scale) has the parameter by", "add reset_parameters(self)"],
    RootWithoutReset: ["RootWithoutReset", "token", "add reset_parameters(self)"],
    ForgetsOne: ["reset_parameters of the model ForgetsOne leaves other as it was"],
    ResetRaises: ["cannot be initialised", "ValueError: not today"],
    Double: ["Double", "head.weight", "float64", "float32"],
    ComplexBuffer: ["ComplexBuffer", "buffer phase"],
    ExtraState: ["ExtraState", "_extra_state", "cannot be sent"],
    ResetByNumpy: ["ResetByNumpy", "differ in head.bias", "torch alone"],
    ForwardByPython: ["ForwardByPython", "train mode", "torch alone"],
    AlwaysDrops: ["AlwaysDrops", "eval mode", "training=self.training"],
    NormalisesTheBatch: ["NormalisesTheBatch", "other images are in its batch"],
}


def checked(made, classifier: str | None = None, task: Task = TASK) -> None:
    """As in a run: the model is made by a factory, and every network is a copy with weights of its own."""
    architecture = own.architecture(made, task, Key(0), name="mine", classifier=classifier, keep_weights=False)
    validate(architecture, task)


def assert_sentence(error: UserError, words: list[str]) -> None:
    text = str(error)
    assert text.endswith(".")
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_a_model_that_fits_passes():
    checked(lambda *_: Base())


@pytest.mark.parametrize(("model", "words"), SENTENCES.items(), ids=lambda given: getattr(given, "__name__", ""))
def test_a_model_that_does_not_fit_is_told_why(model, words):
    with pytest.raises(UserError) as error:
        checked(lambda *_: model())
    assert_sentence(error.value, words)


@pytest.mark.parametrize(
    ("model", "classifier", "words"),
    [
        (Base, "top", ["no layer 'top'", "hidden, head"]),
        (WithoutReset, "scale.by", ["reset_parameters"]),
        (HeadTwice, "head", ["'head' is called 2 times"]),
    ],
)
def test_a_named_classifier_that_does_not_fit_is_told_why(model, classifier, words):
    with pytest.raises(UserError) as error:
        checked(lambda *_: model(), classifier)
    assert_sentence(error.value, words)


class NeverCalled(Base):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(6, 3)


def test_a_classifier_that_is_never_called_is_told_so():
    checked(lambda *_: NeverCalled())
    with pytest.raises(UserError) as error:
        checked(lambda *_: NeverCalled(), "spare")
    assert_sentence(error.value, ["'spare' is never called", "model.classifier"])


def test_a_classifier_need_not_be_linear():
    made = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 3, 6), nn.Flatten())
    checked(lambda *_: made, "2")


def test_a_factory_that_draws_outside_torch_is_told_so():
    def buffered(*_):
        model = Base()
        model.register_buffer("noise", torch.tensor(np.random.default_rng().random(3)))
        return model

    def randomly_wide(*_):
        widths.append(len(widths) + 1)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, widths[-1]), nn.Linear(widths[-1], 3))

    widths: list[int] = []
    for made, where in ((buffered, "noise"), (randomly_wide, "1.weight")):
        with pytest.raises(UserError) as error:
            checked(made)
        assert_sentence(error.value, [f"differs each time it is made, in {where}", "torch alone"])


def test_a_model_that_cannot_be_copied_is_told_so():
    def stuck(*_):
        model = Base()
        model.last = model(torch.zeros(1, 1, 8, 8))
        return model

    with pytest.raises(UserError) as error:
        checked(stuck)
    assert_sentence(error.value, ["'mine' cannot be copied", "RuntimeError"])


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
    ("name", "norm"), [("convnet", "batch"), ("convnet", "instance"), ("convnet", "none"), ("resnet18", "batch")]
)
def test_the_built_in_networks_fit(name, norm):
    task = Task("tiny", 3, 8, 8, 5, mean=(0.5,) * 3, std=(0.25,) * 3)
    validate(Architecture(lambda key: build(name, task, key, depth=3, width=8, norm=norm)), task)


def test_something_must_be_trained():
    with pytest.raises(UserError, match="no parameter that is trained"):
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
def test_every_parameter_is_drawn_from_the_key_whatever_it_was_before(name):
    first, second = (zoo.ALL[name](1, 8, 3) for _ in range(2))
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.fill_(torch.nan)
    initialise(first, Key(1))
    initialise(second, Key(1))
    assert own.first_difference(first, second) is None
    assert own.first_difference(first, initialise(second, Key(2))) is not None
