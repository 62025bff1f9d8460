"""Running statistics of BatchNorm: estimated for given weights, and what round 1 gains by them."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.condensation.resampling import Fresh
from fedaf.data.pixels import normalise
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import batch_norms, estimate_statistics, reference_images
from fedaf.models.weights import FreshWeights
from fedaf.protocol import Client, Key, Task
from support import zoo
from support.small import SMALL_CONDENSING, shards, small_experiment
from support.tiny import ENGINE
from support.zoo import build

CPU = torch.device("cpu")
TASK = Task("tiny", 3, 8, 8, 5, mean=(0.5,) * 3, std=(0.25,) * 3)
LARGE = Task("large", 3, 32, 32, 5, mean=(0.5,) * 3, std=(0.25,) * 3)
STATISTICS = ("running_mean", "running_var")


def convnet(task: Task = TASK, seed: int = 0, norm: str = "batch") -> nn.Module:
    return build("convnet", task, Key(seed), depth=2, width=4, norm=norm)


def batch(seed: int, count: int = 6, task: Task = TASK) -> Tensor:
    return 1 + 2 * torch.randn(count, *task.image_shape, generator=Key(seed).torch())


def by_hand(model: nn.Module, images: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The mean and the unbiased variance before each BatchNorm of a ConvNet, each normalising by its own batch."""
    found = []
    with torch.no_grad():
        for layer in model.features:
            if isinstance(layer, nn.BatchNorm2d):
                flat = images.transpose(0, 1).flatten(1)
                mean, biased = flat.mean(1), flat.var(1, correction=0)
                found.append((mean, flat.var(1)))
                columns = (slice(None), None, None)
                scaled = (images - mean[columns]) / (biased + layer.eps).sqrt()[columns]
                images = scaled * layer.weight[columns] + layer.bias[columns]
            else:
                images = layer(images)
    return found


def test_one_batch_gives_every_layer_the_statistics_of_that_batch():
    model, images = convnet(), batch(1)
    expected = by_hand(model, images)
    estimate_statistics(model, [images])
    assert len(expected) == len(batch_norms(model)) == 2
    for layer, (mean, variance) in zip(batch_norms(model), expected, strict=True):
        torch.testing.assert_close(layer.running_mean, mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.running_var, variance, rtol=1e-4, atol=1e-5)


def test_several_batches_give_the_mean_of_their_statistics():
    model, batches = convnet(), [batch(seed) for seed in (1, 2, 3)]
    each = [by_hand(model, images) for images in batches]
    estimate_statistics(model, iter(batches))
    for number, layer in enumerate(batch_norms(model)):
        means, variances = (torch.stack([found[number][i] for found in each]).mean(0) for i in (0, 1))
        torch.testing.assert_close(layer.running_mean, means, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(layer.running_var, variances, rtol=1e-4, atol=1e-5)


def test_earlier_statistics_leave_no_trace():
    fresh, used = convnet(), convnet()
    used(100 * batch(9))
    for model in (fresh, used):
        estimate_statistics(model, [batch(1), batch(2)])
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, used.state_dict()[name]), name


@pytest.mark.parametrize("training", [True, False])
def test_parameters_modes_and_momentum_stay(training):
    model = nn.Sequential(convnet(), nn.Dropout(0.5)).train(training)
    model[0].features[1].momentum = 0.3
    model[0].features[0].training = not training  # a layer with a mode of its own
    parameters = copy.deepcopy(dict(model.named_parameters()))
    modes = [module.training for module in model.modules()]
    estimate_statistics(model, [batch(1)])
    assert all(torch.equal(p, parameters[name]) for name, p in model.named_parameters())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    assert [module.training for module in model.modules()] == modes
    assert [layer.momentum for layer in batch_norms(model)] == [0.3, 0.1]


def test_modes_and_momentum_are_restored_after_an_error():
    model = convnet().eval()
    with pytest.raises(RuntimeError):
        estimate_statistics(model, [torch.zeros(2, 1, 1, 1)])
    assert not any(module.training for module in model.modules())
    assert {layer.momentum for layer in batch_norms(model)} == {0.1}


def test_dropout_does_not_change_the_statistics():
    def statistics(seed: int) -> Tensor:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Dropout(0.5), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
        nn.init.constant_(model[1].weight, 0.1)
        nn.init.zeros_(model[1].bias)
        estimate_statistics(model.train(), [batch(1)])
        return model[2].running_mean

    assert torch.equal(statistics(1), statistics(2))


@pytest.mark.parametrize("make", [lambda: convnet(norm="none"), lambda: zoo.group_norm(3, 8, 5)])
def test_a_model_without_batch_norm_is_not_called(make):
    model = make()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was called"))
    before = copy.deepcopy(model.state_dict())
    estimate_statistics(model, [batch(1)])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_batch_norm_that_keeps_no_statistics_is_left_alone():
    model = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.BatchNorm2d(3), nn.Flatten())
    assert batch_norms(model) == [model[1]]
    estimate_statistics(model, [batch(1)])
    assert model[0].running_mean is None
    assert float(model[1].running_var.mean()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    "make",
    [
        lambda: build("resnet18", LARGE, Key(0), depth=3, width=8, norm="batch"),
        lambda: zoo.dropout(3, 32, 5),
    ],
    ids=["resnet18", "custom"],
)
def test_every_layer_of_other_networks_has_the_statistics_of_what_it_was_given(make):
    model, images = make().eval(), batch(1, 16, LARGE)
    seen: dict[nn.Module, Tensor] = {}
    for layer in batch_norms(model):
        layer.register_forward_pre_hook(lambda layer, inputs: seen.update({layer: inputs[0].detach()}))
    estimate_statistics(model, [images])
    assert len(seen) == len(batch_norms(model)) > 0
    for layer, given in seen.items():
        values = given.transpose(0, 1).flatten(1)
        torch.testing.assert_close(layer.running_mean, values.mean(1), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(layer.running_var, values.var(1), rtol=1e-3, atol=1e-5)


def test_reference_images_have_the_moments_of_normalised_images():
    images = reference_images(LARGE, Key(1))
    assert images.shape == (256, 3, 32, 32)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.ones(3), rtol=0, atol=1e-4)
    red, green, blue = images.transpose(0, 1).flatten(1)
    for one, other in ((red, green), (green, blue), (red, blue)):  # 1 / (1 + 0.5^2) in expectation
        assert float((one * other).mean()) == pytest.approx(0.8, abs=0.05)


def test_the_power_of_reference_images_falls_with_the_square_of_the_frequency():
    """The slope of log power over log frequency, fitted to the frequencies between the longest wave and Nyquist's."""
    images = reference_images(replace(LARGE, height=64, width=64), Key(1), count=200)
    power = torch.fft.fft2(images).abs().square().mean((0, 1))
    rows = torch.fft.fftfreq(64)
    frequency = (rows[:, None].square() + rows.square()).sqrt()
    fitted = (frequency > 1.5 / 64) & (frequency < 0.5)
    x, y = frequency[fitted].log(), power[fitted].log()
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
    assert slope == pytest.approx(-2, abs=0.05)


def test_reference_images_follow_from_their_key():
    grey = Task("grey", 1, 8, 10, 5, mean=(0.5,), std=(0.25,))
    first, again, other = (reference_images(grey, Key(k), count=4) for k in (1, 1, 2))
    assert first.shape == (4, 1, 8, 10)
    assert torch.equal(first, again)
    assert not torch.isclose(first, other).any()


def method_of(name: str):
    return small_experiment(name, **SMALL_CONDENSING[name])


@pytest.mark.parametrize("name", SMALL_CONDENSING)
def test_before_round_one_the_features_of_real_digits_have_a_spread_of_about_one_in_every_channel(name):
    """Without the estimate, activations shrink from layer to layer."""
    experiment = method_of(name)
    method = experiment.method
    model = method.build_model(Key(0))
    model.load_state_dict(method.initial(Key(0)).model)
    images = normalise(experiment.dataset.test.images, method.task.mean, method.task.std)
    spreads = []
    with torch.no_grad():
        for layer in model.eval().features:  # one by one: the network itself may fuse a block
            images = layer(images)
            if isinstance(layer, nn.BatchNorm2d):
                spreads.append(images.transpose(0, 1).flatten(1).std(1))
    assert len(spreads) == 3
    assert torch.stack(spreads).min() > 0.3
    assert torch.stack(spreads).max() < 3


@pytest.mark.parametrize("name", SMALL_CONDENSING)
def test_the_initial_model_differs_from_a_fresh_one_in_its_statistics_only(name):
    method = method_of(name).method
    state, fresh = method.initial(Key(3)).model, method.build_model(Key(3).derive("model")).state_dict()
    for tensor_name, tensor in state.items():
        if tensor_name.endswith(STATISTICS):
            assert not torch.isclose(tensor, fresh[tensor_name]).all(), tensor_name
        elif not tensor_name.endswith("num_batches_tracked"):
            assert torch.equal(tensor, fresh[tensor_name]), tensor_name


def first_gradient(method, model: dict[str, Tensor], shard) -> float:
    """The norm of the gradient in the first condensation step of round 1."""
    knowledge, condense = method.phases
    asked = type(knowledge.ask(method.initial(Key(0)), "a"))(model)
    client = Client("a", shard, Key(1))
    outcome = knowledge.work_one(asked, client, ENGINE)
    classes = outcome.reply.tensors["classes"]
    server = knowledge.aggregate(method.initial(Key(0)).next_round(1), {"a": outcome.reply})
    client = replace(client, scratch=model)
    before, _ = condense._job(condense.ask(server, "a"), client)
    after = condense.work_one(condense.ask(server, "a"), client, ENGINE)
    assert after.state is not None
    assert after.state["classes"].tolist() == classes.tolist()
    return float((after.state["images"] - before.images).norm()) / method.options.image_lr


def test_the_first_image_gradient_is_many_times_that_without_the_estimate():
    """Measured: 0.14 instead of 0.00002."""
    options = {"ipc": 5, "local_steps": 1, "real_batch": 64, "lambda_loc": 0.0, "gamma": 1.0}
    experiment = small_experiment("fedaf", **options)
    method, shard = experiment.method, next(iter(shards(experiment).values()))
    estimated = method.initial(Key(0)).model
    plain = method.build_model(Key(0).derive("model")).state_dict()
    with_estimate, without = first_gradient(method, estimated, shard), first_gradient(method, plain, shard)
    print(f"gradient {with_estimate:.3g} with estimated statistics, {without:.3g} without")
    assert with_estimate > 100 * without > 0


def test_fresh_networks_of_feddm_have_the_statistics_of_their_own_weights():
    model, images = convnet(), batch(4, 12)
    weights = model.state_dict()
    networks = Fresh(weights, FreshWeights(model), Key(1), Backbone(model, TASK, CPU), images)
    seen = []
    for step in (0, 1):
        networks.draw(step)
        drawn = {name: t.clone() for name, t in networks.weights().items()}
        other = convnet()
        other.load_state_dict(drawn)
        for layer, (mean, variance) in zip(batch_norms(other), by_hand(other, images), strict=True):
            torch.testing.assert_close(layer.running_mean, mean, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(layer.running_var, variance, rtol=1e-4, atol=1e-5)
        seen.append(drawn)
    assert not torch.isclose(seen[0]["features.5.running_mean"], seen[1]["features.5.running_mean"]).any()
    assert all(torch.equal(weights[name], t) for name, t in convnet().state_dict().items())  # nothing was written


def test_statistics_of_a_backbone_leave_its_other_calls_alone():
    model, images = convnet(), batch(4, 12)
    backbone = Backbone(model, TASK, CPU)
    weights = {name: t.clone() for name, t in model.state_dict().items()}
    before = backbone(weights, images)
    statistics = backbone.statistics(weights, images)
    after = backbone(weights, images)
    torch.testing.assert_close(before, after, rtol=0, atol=0)
    normalised = backbone({**weights, **statistics}, images)[1]
    assert F.mse_loss(normalised, before[1]) > 1e-4
