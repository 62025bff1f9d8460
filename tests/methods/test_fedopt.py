"""FedAvgM, FedAdam and FedYogi against steps by hand."""

import math

import pytest
import torch

from fedaf.methods.fedopt import AdaptiveMemory, MomentumMemory
from fedaf.protocol import Key, Payload
from fedaf.protocol.records import from_tensors, to_tensors
from support.tiny import Play, assert_close, fit_of, make, parameters, shard

SHARDS = {"a": shard(12, seed=1), "b": shard(4, seed=2)}
OPTIMISERS = ("fedavgm", "fedadam", "fedyogi")


def steps_of(name: str, deltas: list[float], **options) -> list[float]:
    """The server's steps for these pseudo-gradients of one weight; what it keeps goes through a checkpoint."""
    method = make(name, **options)
    memory, found = method.Memory(), []
    for delta in deltas:
        update, memory = method.step({"w": torch.tensor([delta], dtype=torch.float64)}, memory)
        memory = from_tensors(method.Memory, to_tensors(memory))
        found.append(float(update["w"]))
    return found


def test_fedavgm_sums_its_pseudo_gradients():
    found = steps_of("fedavgm", [0.4, -0.2, 0.0], global_lr=0.5, global_momentum=0.9)
    velocities = [0.4, 0.9 * 0.4 - 0.2, 0.9 * (0.9 * 0.4 - 0.2)]
    assert found == pytest.approx([0.5 * u for u in velocities])


ADAPTIVE = {"global_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "adaptivity": 0.01}
FIRST = 0.1 * 0.4, -0.2 * 0.1 + 0.9 * 0.1 * 0.4  # m after each of two rounds


def test_two_steps_of_fedadam_by_hand():
    v1 = 0.99 * 0.01**2 + 0.01 * 0.4**2
    v2 = 0.99 * v1 + 0.01 * 0.2**2
    expected = [0.1 * m / (math.sqrt(v) + 0.01) for m, v in zip(FIRST, (v1, v2), strict=True)]
    assert steps_of("fedadam", [0.4, -0.2], **ADAPTIVE) == pytest.approx(expected)


def test_two_steps_of_fedyogi_by_hand():
    v1 = 0.01**2 + 0.01 * 0.4**2  # below 0.4^2: grows
    v2 = v1 + 0.01 * 0.2**2
    expected = [0.1 * m / (math.sqrt(v) + 0.01) for m, v in zip(FIRST, (v1, v2), strict=True)]
    assert steps_of("fedyogi", [0.4, -0.2], **ADAPTIVE) == pytest.approx(expected)


def test_the_second_moment_of_fedyogi_shrinks_slower_than_that_of_fedadam():
    adam, yogi = make("fedadam"), make("fedyogi")
    large, small = torch.tensor(4.0), torch.tensor(1.0)
    assert float(adam.second_moment(large, small, 0.9)) == pytest.approx(0.9 * 4 + 0.1 * 1)
    assert float(yogi.second_moment(large, small, 0.9)) == pytest.approx(4 - 0.1 * 1)
    assert float(yogi.second_moment(small, large, 0.9)) == pytest.approx(1 + 0.1 * 4)
    assert float(yogi.second_moment(small, small, 0.9)) == 1


def test_fedavgm_without_momentum_and_with_learning_rate_one_is_fedavg_bit_for_bit():
    local = {"lr": 0.05, "momentum": 0.9, "local_epochs": 2}
    same = Play(make("fedavgm", global_lr=1.0, global_momentum=0.0, **local), SHARDS)
    plain = Play(make("fedavg", **local), SHARDS)
    for _ in range(3):
        same.round()
        plain.round()
        assert all(torch.equal(t, plain.server.model[n]) for n, t in same.server.model.items())


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_round_moves_parameters_by_the_optimiser_and_averages_statistics(name):
    method = make(name, lr=0.05, global_lr=0.3)
    server, fit = method.initial(Key(0)).next_round(2), fit_of(method)
    model, other = (
        {n: t + 0.1 * k * torch.ones_like(t) if t.is_floating_point() else t for n, t in server.model.items()}
        for k in (1, 2)
    )
    replies = {"a": Payload(model, {"samples": 3, "loss_ce": 1.0}), "b": Payload(other, {"samples": 1, "loss_ce": 1.0})}
    after = fit.aggregate(server, replies)
    mean = 0.1 * (0.75 * 1 + 0.25 * 2)
    (update,) = steps_of(name, [mean], lr=0.05, global_lr=0.3)
    x = parameters(method, server.model)
    assert_close(parameters(method, after.model), {n: x[n] + update for n in x}, atol=1e-6)
    for n in set(server.model) - set(x):
        torch.testing.assert_close(after.model[n], server.model[n] + (mean if model[n].is_floating_point() else 0))
    kept = to_tensors(after.memory)
    assert {n.partition("/")[2] for n in kept} == set(x)
    assert all(t.dtype == torch.float32 for t in kept.values())


def test_the_default_values_are_those_of_the_paper():
    adam, yogi = make("fedadam").options, make("fedyogi").options
    assert adam == yogi
    assert (adam.beta1, adam.beta2, adam.adaptivity) == (0.9, 0.99, 1e-3)
    assert make("fedavgm").options.global_momentum == 0.9
    assert (make("fedavgm").Memory, make("fedyogi").Memory) == (MomentumMemory, AdaptiveMemory)
