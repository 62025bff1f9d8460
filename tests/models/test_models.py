"""The built-in networks, and any network as features followed by a classifier."""

import pytest
import torch
from torch import Tensor, nn

from fedaf.models.backbone import Backbone
from fedaf.models.convnet import NORMS, ConvNet
from fedaf.models.footprint import pass_bytes
from fedaf.models.resnet import ResNet18
from fedaf.models.weights import initialise
from fedaf.protocol import Key, Task
from support.errors import raises
from support.zoo import build

CPU = torch.device("cpu")
TASK = Task("tiny", 1, 4, 4, 3, mean=(0.5,), std=(0.25,))


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def images_of(count: int, task: Task = TASK) -> Tensor:
    return torch.randn(count, *task.image_shape, generator=Key(0).torch())


@pytest.mark.parametrize(
    ("shape", "classes", "parameters"),
    [
        ((3, 32, 32), 10, 320_010),
        ((3, 32, 32), 100, 504_420),
        ((1, 28, 28), 10, 317_706),
        ((3, 64, 64), 10, 381_450),
    ],
)
def test_convnet_has_the_papers_parameters(shape: tuple[int, int, int], classes: int, parameters: int) -> None:
    model = ConvNet(*shape, classes)
    assert parameters_of(model) == parameters
    assert model.eval()(torch.zeros(1, *shape)).shape == (1, classes)


def test_resnet18_has_the_papers_parameters() -> None:
    model = ResNet18(3, 10)
    assert parameters_of(model) == 11_181_642
    assert model.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("height", "width"), [(9, 13), (17, 9), (11, 24)])
def test_convnet_takes_odd_sizes_with_every_norm(height: int, width: int, norm: str) -> None:
    model = ConvNet(2, height, width, 5, filters=4, norm=norm, groups=2)
    assert model(torch.randn(3, 2, height, width)).shape == (3, 5)


def test_the_norm_option_selects_the_layer() -> None:
    kinds = {norm: {type(m) for m in ConvNet(1, 8, 8, 2, filters=4, norm=norm, groups=2).features} for norm in NORMS}
    assert nn.BatchNorm2d in kinds["batch"]
    assert nn.GroupNorm in kinds["instance"]
    assert nn.GroupNorm in kinds["group"]
    assert not {nn.BatchNorm2d, nn.GroupNorm} & kinds["none"]


def test_instance_norm_normalises_each_image_and_channel_separately() -> None:
    norm = ConvNet(1, 8, 8, 2, filters=4, norm="instance").features[1]
    maps = 3 + 5 * torch.randn(2, 4, 6, 6, generator=Key(0).torch())
    torch.testing.assert_close(norm(maps).mean((2, 3)), torch.zeros(2, 4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_group_norm_normalises_the_channels_of_each_group_together(name: str) -> None:
    model = build(name, TASK, Key(0), depth=1, width=8, norm="group", groups=4)
    norm = next(module for module in model.modules() if isinstance(module, nn.GroupNorm))
    maps = 3 + 5 * torch.randn(2, norm.num_channels, 6, 6, generator=Key(0).torch())
    by_group = maps.view(2, 4, -1)
    expected = (by_group - by_group.mean(2, keepdim=True)) / (by_group.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(maps), expected.view_as(maps), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(norm(maps).mean((2, 3)), torch.zeros(2, norm.num_channels), atol=1e-3)


def test_channels_that_cannot_be_divided_into_groups_are_a_user_error_naming_what_fits() -> None:
    with raises("FEDAF-MODEL-NORM") as error:
        build("convnet", TASK, Key(0), depth=1, width=12, norm="group", groups=8)
    assert "12 channels" in str(error.value)
    assert "1, 2, 3, 4, 6, 12" in str(error.value)


@pytest.mark.parametrize(("height", "width", "depth"), [(7, 32, 3), (32, 7, 3), (8, 8, 4)])
def test_a_depth_too_large_for_the_images_is_a_user_error(height: int, width: int, depth: int) -> None:
    with raises("FEDAF-MODEL-DEPTH") as error:
        ConvNet(3, height, width, 10, depth=depth)
    assert f"depth {depth}" in str(error.value)
    assert f"{height}x{width}" in str(error.value)


def test_instance_norm_of_single_pixels_is_a_user_error() -> None:
    with raises("FEDAF-MODEL-NORM"):
        build("resnet18", TASK, Key(0), depth=1, width=4, norm="instance")


def test_an_unknown_model_is_a_user_error_naming_the_nearest() -> None:
    with raises("FEDAF-MODEL-UNKNOWN") as error:
        build("convnett", TASK, Key(0), depth=1, width=4, norm="batch")
    assert "'convnet'" in str(error.value)


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_initial_weights_follow_from_the_key_alone(name: str) -> None:
    task = Task("tiny", 1, 8, 8, 3, mean=(0.5,), std=(0.25,))
    torch.manual_seed(1)
    first = build(name, task, Key(7), depth=2, width=4, norm="batch").state_dict()
    torch.manual_seed(2)
    again = build(name, task, Key(7), depth=2, width=4, norm="batch").state_dict()
    other = build(name, task, Key(8), depth=2, width=4, norm="batch").state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["features.0.weight"], other["features.0.weight"])
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def test_initialising_resets_running_statistics_too() -> None:
    model = build("convnet", TASK, Key(0), depth=1, width=4, norm="batch")
    new = {name: t.clone() for name, t in model.state_dict().items()}
    model(images_of(8))
    with torch.no_grad():
        model.classifier.weight.add_(1)
    initialise(model, Key(0))
    assert all(torch.equal(t, new[name]) for name, t in model.state_dict().items())


def test_resnet_convolutions_are_initialised_by_fan_out() -> None:
    model = ResNet18(3, 10)
    for _ in range(2):  # as built, and as initialised from a key
        stem, last = model.features[0].weight, model.features[-3].conv2.weight
        assert stem.std().item() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.05)
        assert last.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.05)
        initialise(model, Key(0))


class OutOfOrder(nn.Module):
    """Defines the classifier before the layer that it follows."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(5, 3)
        self.hidden = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.tanh(self.hidden(images.flatten(1))))
        return logits


def test_features_are_the_input_of_the_last_linear_in_execution_order() -> None:
    model, images = OutOfOrder(), images_of(6)
    features, logits = Backbone(model, TASK, CPU)(model.state_dict(), images)
    torch.testing.assert_close(features, torch.tanh(model.hidden(images.flatten(1))))
    torch.testing.assert_close(logits, model(images))


def test_a_named_classifier_is_used_instead() -> None:
    model, images = OutOfOrder(), images_of(6)
    features, logits = Backbone(model, TASK, CPU, classifier="hidden")(model.state_dict(), images)
    torch.testing.assert_close(features, images.flatten(1))
    torch.testing.assert_close(logits, model(images))


def test_a_named_classifier_need_not_be_linear_and_its_features_are_flat() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 4), nn.Flatten())
    features, logits = Backbone(model, TASK, CPU, classifier="1")(model.state_dict(), images_of(6))
    torch.testing.assert_close(features, model[0](images_of(6)).flatten(1))
    assert logits.shape == (6, 3)


def test_a_model_without_a_linear_layer_is_a_user_error() -> None:
    with raises("FEDAF-MODEL-CLASSIFIER"):
        Backbone(nn.Sequential(nn.Conv2d(1, 3, 4), nn.Flatten()), TASK, CPU)


def test_a_classifier_that_is_not_there_is_a_user_error_naming_the_layers() -> None:
    with raises("FEDAF-MODEL-CLASSIFIER") as error:
        Backbone(OutOfOrder(), TASK, CPU, classifier="head")
    assert "'head'" in str(error.value)
    assert "classifier, hidden" in str(error.value)


def test_the_backbone_computes_with_the_weights_it_is_given_and_leaves_the_model_alone() -> None:
    model, other, images = OutOfOrder(), OutOfOrder(), images_of(6)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    _, logits = Backbone(model, TASK, CPU)(other.state_dict(), images)
    torch.testing.assert_close(logits, other(images))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert model.training


def small_convnet() -> nn.Module:
    model = build("convnet", TASK, Key(0), depth=1, width=4, norm="batch")
    model(5 + images_of(8))
    return model


def test_batch_statistics_are_used_but_not_written() -> None:
    model, images = small_convnet(), images_of(6)
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    before = {name: t.clone() for name, t in weights.items()}
    backbone = Backbone(model, TASK, CPU)
    _, with_batch = backbone(weights, images, batch_statistics=True)
    _, with_running = backbone(weights, images)
    assert all(torch.equal(weights[name], t) for name, t in before.items())
    assert all(torch.equal(t, before[name]) for name, t in backbone.model.state_dict().items())
    torch.testing.assert_close(with_running, small_convnet().eval()(images))
    torch.testing.assert_close(with_batch, small_convnet().train()(images))
    assert (with_batch - with_running).abs().max() > 0.1


def test_image_gradients_flow_through_the_backbone_and_weights_keep_none() -> None:
    model, images = small_convnet(), images_of(6).requires_grad_()
    features, _ = Backbone(model, TASK, CPU)(model.state_dict(), images)
    features.square().sum().backward()
    assert images.grad is not None
    assert images.grad.abs().max() > 0
    assert all(p.grad is None for p in model.parameters())


def test_activation_bytes_count_every_layers_output_for_one_image() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    assert Backbone(model, TASK, CPU).activation_bytes == 4 * (32 + 32 + 32 + 3)


class Functional(nn.Module):
    """Computes with functions; only the classifier is a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(16, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        for _ in range(5):
            x = torch.tanh(x)
        logits: Tensor = self.classifier(x)
        return logits


def test_activation_bytes_count_what_is_computed_outside_of_layers() -> None:
    assert Backbone(Functional(), TASK, CPU).activation_bytes == 4 * 5 * 16


def test_activation_bytes_are_never_less_than_two_images() -> None:
    assert Backbone(nn.Sequential(nn.Flatten(), nn.Linear(16, 1)), TASK, CPU).activation_bytes >= 4 * 2 * 16
    assert Backbone(nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(1, 1)), TASK, CPU).activation_bytes == 128


def test_a_pass_without_gradient_holds_the_input_and_output_of_its_largest_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    assert pass_bytes(model, torch.zeros(1, 1, 4, 4)) == 4 * (32 + 32)
    assert pass_bytes(Functional(), torch.zeros(1, 1, 4, 4)) == 4 * (16 + 16)


def test_batch_statistics_leave_dropout_off_and_other_norms_as_they_are() -> None:
    norms = [nn.BatchNorm2d(1), nn.InstanceNorm2d(1, track_running_stats=True), nn.GroupNorm(1, 1)]
    model = nn.Sequential(*norms, nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3))
    for norm in norms[:2]:
        norm.running_mean.fill_(0.5)
    images, backbone = images_of(6), Backbone(model, TASK, CPU)
    features, _ = backbone(model.state_dict(), images, batch_statistics=True)
    model.eval()[0].train()
    torch.testing.assert_close(features, model[:5](images))
    assert not any(module.training for module in backbone.model.modules())


def test_a_classifier_called_twice_is_a_user_error() -> None:
    shared = nn.Linear(16, 16)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), shared, shared)
    with raises("FEDAF-MODEL-CLASSIFIER") as error:
        Backbone(model, TASK, CPU)
    assert "'2'" in str(error.value)
