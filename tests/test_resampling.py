import pytest
import torch
from torch import Tensor, nn

from fedaf.condensation.resampling import perturb, resample
from fedaf.models.registry import build
from fedaf.models.weights import FreshWeights, initialise
from fedaf.protocol import Key, Task

TASK = Task("tiny", 1, 8, 8, 3, mean=(0.5,), std=(0.25,))
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def model_of(seed: int) -> nn.Module:
    """A small BatchNorm network whose running statistics are those of no fresh network."""
    model = build("convnet", TASK, Key(seed), depth=2, width=4, norm="batch")
    with torch.no_grad():
        model(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(seed)))
    return model


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in tensors.items()}


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_statistics_are_always_the_global_ones(gamma: float) -> None:
    model = model_of(0)
    weights = model.state_dict()
    blended = resample(weights, FreshWeights(model)(Key(1)), gamma)
    assert set(blended) == set(weights)
    for name in weights:
        if name.endswith(STATISTICS):
            assert torch.equal(blended[name], weights[name])
    assert blended["features.1.num_batches_tracked"] == 1


def test_gamma_zero_gives_exactly_the_fresh_parameters() -> None:
    model = model_of(0)
    fresh = FreshWeights(model)(Key(1))
    blended = resample(model.state_dict(), fresh, 0.0)
    assert all(torch.equal(blended[name], fresh[name]) for name in fresh)


def test_gamma_one_gives_exactly_the_global_parameters() -> None:
    model = model_of(0)
    blended = resample(model.state_dict(), FreshWeights(model)(Key(1)), 1.0)
    assert all(torch.equal(blended[name], w) for name, w in model.state_dict().items())


def test_gamma_weighs_the_global_parameters() -> None:
    weights = {"a": torch.tensor([8.0, -4.0]), "statistic": torch.tensor([7.0])}
    fresh = {"a": torch.tensor([0.0, 4.0])}
    assert resample(weights, fresh, 0.5)["a"].tolist() == [4.0, 0.0]
    assert resample(weights, fresh, 0.75)["a"].tolist() == [6.0, -2.0]


def test_resampling_writes_into_neither_model() -> None:
    model = model_of(0)
    weights, fresh = model.state_dict(), FreshWeights(model)(Key(1))
    before = copied(weights), copied(fresh)
    resample(weights, fresh, 0.5)
    for now, then in zip((weights, fresh), before, strict=True):
        assert all(torch.equal(now[name], then[name]) for name in then)


def test_the_same_key_gives_the_same_fresh_parameters_whatever_came_before() -> None:
    fresh = FreshWeights(model_of(0))
    first = copied(fresh(Key(5)))
    fresh(Key(6))
    again = copied(fresh(Key(5)))
    from_another_model = copied(FreshWeights(model_of(9))(Key(5)))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(torch.equal(first[name], from_another_model[name]) for name in first)


def test_another_key_gives_other_fresh_parameters() -> None:
    fresh = FreshWeights(model_of(0))
    first, other = copied(fresh(Key(5))), copied(fresh(Key(6)))
    for name in ("features.0.weight", "features.4.weight", "classifier.weight"):
        assert not torch.isclose(first[name], other[name]).any()


def test_fresh_parameters_are_those_of_a_newly_initialised_network_without_its_statistics() -> None:
    model = model_of(0)
    fresh = copied(FreshWeights(model)(Key(5)))
    new = dict(initialise(model_of(3), Key(5)).named_parameters())
    assert set(fresh) == set(new)
    assert all(torch.equal(fresh[name], new[name]) for name in new)


def test_fresh_weights_leave_the_global_random_state_alone() -> None:
    fresh = FreshWeights(model_of(0))
    before = torch.get_rng_state()
    fresh(Key(5))
    assert torch.equal(torch.get_rng_state(), before)


def test_fresh_weights_leave_the_given_model_alone() -> None:
    model = model_of(0)
    before = copied(model.state_dict())
    FreshWeights(model)(Key(5))
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


def test_a_perturbation_has_the_length_rho_over_all_parameters_together() -> None:
    weights = {"a": torch.zeros(2), "b": torch.zeros(1), "running_mean": torch.ones(1)}
    moved = perturb(weights, {"a": torch.tensor([2.0, 0.0]), "b": torch.tensor([-1.5])}, 5.0)
    torch.testing.assert_close(moved["a"], torch.tensor([4.0, 0.0]))
    torch.testing.assert_close(moved["b"], torch.tensor([-3.0]))
    assert torch.equal(moved["running_mean"], weights["running_mean"])


def test_gaussian_directions_are_keyed_and_standard_normal() -> None:
    fresh = FreshWeights(build("convnet", TASK, Key(0), depth=2, width=64, norm="batch"))
    one = torch.cat([g.flatten() for g in fresh.gaussian(Key(1)).values()])
    again = torch.cat([g.flatten() for g in fresh.gaussian(Key(1)).values()])
    other = torch.cat([g.flatten() for g in fresh.gaussian(Key(2)).values()])
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert abs(float(one.mean())) < 0.02
    assert abs(float(one.std()) - 1) < 0.02
