import copy

import pytest
import torch
from torch import Tensor, nn

from fedaf.condensation.resampling import Blended, Perturbed
from fedaf.models.weights import FreshWeights, initialise
from fedaf.protocol import Key, Task
from support.zoo import build

TASK = Task("tiny", 1, 8, 8, 3, mean=(0.5,), std=(0.25,))
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def model_of(seed: int) -> nn.Module:
    """A small BatchNorm network with running statistics that differ from a new network's."""
    model = build("convnet", TASK, Key(seed), depth=2, width=4, norm="batch")
    with torch.no_grad():
        model(torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(seed)))
    return model


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in tensors.items()}


def blend(model: nn.Module, gamma: float, weights: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The network of step 1 for the key 0."""
    networks = Blended(weights or model.state_dict(), FreshWeights(model), Key(0), gamma)
    networks.draw(1)
    return networks.weights()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0])
def test_statistics_are_always_the_global_ones(gamma: float) -> None:
    model = model_of(0)
    weights = model.state_dict()
    blended = blend(model, gamma)
    assert set(blended) == set(weights)
    for name in weights:
        if name.endswith(STATISTICS):
            assert torch.equal(blended[name], weights[name])
    assert blended["features.1.num_batches_tracked"] == 1


def test_gamma_zero_gives_exactly_the_fresh_parameters() -> None:
    model = model_of(0)
    fresh = FreshWeights(model)(Key(0).derive(1))
    assert all(torch.equal(blend(model, 0.0)[name], w) for name, w in fresh.items())


def test_gamma_one_gives_exactly_the_global_parameters() -> None:
    model = model_of(0)
    assert all(torch.equal(blend(model, 1.0)[name], w) for name, w in model.state_dict().items())


def test_gamma_weighs_the_global_parameters() -> None:
    model = model_of(0)
    weights, fresh, blended = model.state_dict(), FreshWeights(model)(Key(0).derive(1)), blend(model, 0.75)
    for name, w in fresh.items():
        torch.testing.assert_close(blended[name], 0.75 * weights[name] + 0.25 * w)


def test_resampling_does_not_write_into_the_model() -> None:
    model = model_of(0)
    before = copied(model.state_dict())
    blend(model, 0.5)
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


def test_the_weights_of_a_step_are_computed_from_tensors_that_stay_where_they_are() -> None:
    """Computing the weights again after another draw gives the network of that draw."""
    model = model_of(0)
    networks = Blended(model.state_dict(), FreshWeights(model), Key(0), 0.5)
    networks.draw(1)
    compute = networks.weights
    first = compute()
    networks.draw(2)
    second = compute()
    networks.draw(1)
    name = "features.4.weight"
    assert not torch.isclose(first[name], second[name]).any()
    assert torch.equal(compute()[name], first[name])


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


class Orthogonal(nn.Linear):
    """Its initialisation is not a simple distribution."""

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight)
        nn.init.constant_(self.bias, 2.0)


def test_parameters_that_follow_no_plain_distribution_are_those_of_a_newly_initialised_network() -> None:
    model = nn.Sequential(Orthogonal(4, 4), nn.Linear(4, 2))
    fresh = FreshWeights(model)(Key(5))
    new = dict(initialise(copy.deepcopy(model), Key(5)).named_parameters())
    assert set(fresh) == set(new)
    assert all(torch.equal(fresh[name], new[name]) for name in new)
    torch.testing.assert_close(fresh["0.weight"] @ fresh["0.weight"].T, torch.eye(4))


@pytest.mark.parametrize("name", ["convnet", "resnet18"])
def test_fresh_parameters_are_distributed_as_in_a_newly_initialised_network(name: str) -> None:
    task = Task("cifar10", 3, 32, 32, 10, mean=(0.5,) * 3, std=(0.25,) * 3)
    model = build(name, task, Key(0), depth=3, width=64, norm="batch")
    fresh, new = FreshWeights(model)(Key(5)), dict(initialise(model, Key(6)).requires_grad_(False).named_parameters())
    assert set(fresh) == set(new)
    for parameter, w in new.items():
        drawn = fresh[parameter]
        assert (drawn.shape, drawn.stride()) == (w.shape, w.stride())
        if w.numel() < 1000 or w.std() == 0:
            assert drawn.abs().max() <= 1.2 * w.abs().max() + 1e-6
            assert (drawn.std() == 0) == (w.std() == 0)
            continue
        ranks = torch.linspace(0.01, 0.99, 25)
        ours, theirs = (torch.quantile(t.flatten()[:100_000], ranks) for t in (drawn, w))
        chance = 0.05 + 8 / min(w.numel(), 100_000) ** 0.5  # several standard errors of a quantile
        torch.testing.assert_close(ours, theirs, rtol=0, atol=chance * float(w.std()))


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


def test_every_parameter_begins_where_many_numbers_can_be_read_at_a_time() -> None:
    fresh = FreshWeights(build("convnet", TASK, Key(0), depth=2, width=5, norm="batch"))
    for parameter in fresh(Key(1)).values():
        assert parameter.storage_offset() * parameter.element_size() % 256 == 0


def test_a_perturbation_has_the_length_rho_over_all_parameters_together() -> None:
    model = model_of(0)
    weights = model.state_dict()
    networks = Perturbed(weights, FreshWeights(model), Key(0), 5.0)
    for step in (0, 1):
        networks.draw(step)
        moved = networks.weights()
        assert set(moved) == set(weights)
        change = torch.cat([(moved[name] - w).flatten() for name, w in weights.items() if "running" not in name])
        assert change.norm() == pytest.approx(5.0, rel=1e-5)
        assert all(torch.equal(moved[name], w) for name, w in weights.items() if name.endswith(STATISTICS))


def test_gaussian_directions_are_keyed_and_standard_normal() -> None:
    fresh = FreshWeights(build("convnet", TASK, Key(0), depth=2, width=64, norm="batch"))
    one, again, other = (
        torch.cat([g.flatten() for g in fresh.named(fresh.gaussian(Key(k)).clone()).values()]) for k in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert abs(float(one.mean())) < 0.02
    assert abs(float(one.std()) - 1) < 0.02
