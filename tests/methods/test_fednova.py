"""FedNova against its closed forms, and on quadratics where FedAvg favours clients with many steps."""

import pytest
import torch

from fedaf.methods.averaging import step_sum
from fedaf.methods.fednova import normalised_weights
from fedaf.protocol import Key, Payload
from support.quadratics import MANY_FLAT, STEEP, joint_optimum, on_quadratics, reached
from support.tiny import Play, a_client, assert_close, fit_of, make, parameters, shard, worked


def test_the_weights_of_the_ways_are_those_of_the_formula():
    found = normalised_weights({"a": 30.0, "b": 10.0}, {"a": 6.0, "b": 2.0})
    effective = 0.75 * 6 + 0.25 * 2
    assert found == pytest.approx({"a": effective * 0.75 / 6, "b": effective * 0.25 / 2})


def test_with_equal_steps_they_are_the_shares_of_samples():
    assert normalised_weights({"a": 30.0, "b": 10.0}, {"a": 7.3, "b": 7.3}) == pytest.approx({"a": 0.75, "b": 0.25})


@pytest.mark.parametrize("samples", [(0.0, 5.0), (1.0, 5.0)])
def test_a_client_without_a_step_is_left_out(samples):
    assert normalised_weights(dict(zip("ab", samples, strict=True)), {"a": 0.0, "b": 3.0}) == {"b": 1.0}
    assert normalised_weights({"a": 1.0}, {"a": 0.0}) == {}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_round_by_hand(momentum):
    method = make("fednova", lr=0.05, momentum=momentum, batch_size=8, local_epochs=2)
    server, fit = method.initial(Key(0)).next_round(2), fit_of(method)
    held = {"a": shard(32, seed=1), "b": shard(8, seed=2)}
    replies = {k: worked(method, fit.ask(server, k), a_client(held[k], name=k)).reply for k in held}
    assert [fit.steps(len(held[k])) for k in "ab"] == [8, 2]
    a, b = (step_sum(steps, momentum) for steps in (8, 2))
    effective, x = 0.8 * a + 0.2 * b, server.model
    y = {k: replies[k].tensors for k in "ab"}
    names = parameters(method, x)
    expected = {n: x[n] - effective * (0.8 * (x[n] - y["a"][n]) / a + 0.2 * (x[n] - y["b"][n]) / b) for n in names}
    found = fit.aggregate(server, replies).model
    assert_close(parameters(method, found), expected, atol=1e-6)
    statistics = [name for name in x if name.endswith(("running_mean", "running_var"))]
    assert statistics
    for name in statistics:
        torch.testing.assert_close(found[name], 0.8 * y["a"][name] + 0.2 * y["b"][name])


def test_with_equal_steps_it_is_fedavg():
    shards = {"a": shard(12, seed=1), "b": shard(9, seed=2), "c": shard(16, seed=3)}  # one batch each
    nova, plain = (Play(make(name, lr=0.05, momentum=0.9, local_epochs=3), shards) for name in ("fednova", "fedavg"))
    for _ in range(2):
        nova.round()
        plain.round()
    assert_close(nova.server.model, plain.server.model, atol=1e-6)


def fixed_point(name: str, **local) -> float:
    """Where rounds end: a round is an affine map of the weight, known from two of them."""
    running = Play(on_quadratics(name, **local), {"steep": STEEP, "flat": MANY_FLAT})
    w0, w1, w2 = (reached(running, rounds) for rounds in (1, 1, 1))
    return w1 + (w2 - w1) / (1 - (w2 - w1) / (w1 - w0))


@pytest.mark.parametrize(("lr", "momentum"), [(0.002, 0.0), (0.0005, 0.9)])
def test_on_quadratics_it_ends_at_the_optimum_of_the_weighted_objective_and_fedavg_does_not(lr, momentum):
    """128 samples are 8 steps and 384 are 24, each with its share of the samples as its weight."""
    local = {"local_epochs": 4, "batch_size": 64, "lr": lr, "momentum": momentum}
    steep, flat = 0.25 * 1.0, 0.75 * 0.16  # share of samples times curvature; the optima are 1 and 0
    optimum = steep / (steep + flat)
    assert optimum == pytest.approx(joint_optimum(STEEP, MANY_FLAT))
    a, b = step_sum(8, momentum), step_sum(24, momentum)
    assert fixed_point("fednova", **local) == pytest.approx(optimum, abs=0.01)
    assert fixed_point("fedavg", **local) == pytest.approx(steep * a / (steep * a + flat * b), abs=0.01)
    assert abs(fixed_point("fedavg", **local) - optimum) > 0.2


def test_clients_send_what_those_of_fedavg_send():
    nova, plain = make("fednova"), make("fedavg")
    ask = Payload(nova.initial(Key(0)).model)
    assert fit_of(nova).schema(ask) == fit_of(plain).schema(ask)
