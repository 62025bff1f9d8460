"""SCAFFOLD against its closed forms, and on quadratics whose joint optimum FedAvg misses."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaf.federation.rounds import RoundRules
from fedaf.methods.scaffold import correction
from fedaf.protocol import Client, Key, Payload
from fedaf.protocol.payload import prefixed, select
from support.quadratics import FLAT, MANY_FLAT, STEEP, joint_optimum, on_quadratics, reached
from support.tiny import (
    CONVNET,
    Play,
    a_client,
    assert_close,
    fit_of,
    gradients,
    make,
    parameters,
    pixels,
    shard,
    worked,
)

SHARDS = {"a": shard(12, seed=1), "b": shard(4, seed=2), "c": shard(8, seed=3), "d": shard(16, seed=4)}


def somewhere(seed: int) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in CONVNET.build(Key(seed)).named_parameters()}


def test_the_gradient_of_the_linear_term_is_the_correction():
    model, c, c_i = CONVNET.build(Key(1)), somewhere(2), somewhere(3)
    linear = {name: c[name] - c_i[name] for name in c}
    assert_close(gradients(correction(model, linear), model), linear)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_two_local_steps_by_hand(momentum):
    """The new control variate is the mean of the client's own gradients, weighted by how often each was applied."""
    held, lr, c, c_i = shard(12), 0.1, somewhere(2), somewhere(3)
    method = make("scaffold", lr=lr, momentum=momentum, local_epochs=2)
    x = method.initial(Key(0)).model
    model = method.build_model(Key(0))
    model.load_state_dict(x)
    velocity, seen = dict.fromkeys(c, 0), []
    for _ in range(2):
        seen.append(gradients(F.cross_entropy(model(pixels(held)), held.labels), model))
        with torch.no_grad():
            for name, p in model.named_parameters():
                velocity[name] = momentum * velocity[name] + seen[-1][name] + c[name] - c_i[name]
                p -= lr * velocity[name]
    outcome = worked(method, Payload({**x, **prefixed("control/", c)}), a_client(held, c_i))
    assert_close(parameters(method, outcome.reply.tensors), parameters(method, model.state_dict()))
    mean = {n: ((1 + momentum) * seen[0][n] + seen[1][n]) / (2 + momentum) for n in c}
    assert_close(outcome.state, mean, atol=1e-4)
    assert_close(select(outcome.reply.tensors, "control/"), {n: mean[n] - c_i[n] for n in c}, atol=1e-4)


def test_without_momentum_the_control_variate_is_that_of_option_ii_with_the_rounds_learning_rate():
    method = make("scaffold", lr=9.9, lr_schedule="cosine", local_epochs=3, batch_size=8)
    x, c, c_i = method.initial(Key(0)).model, somewhere(2), somewhere(3)
    ask = Payload({**x, **prefixed("control/", c)}, {"lr": 0.05})
    outcome = worked(method, ask, a_client(shard(12), c_i))
    y, steps = outcome.reply.tensors, 3 * 2
    assert_close(outcome.state, {n: c_i[n] - c[n] + (x[n] - y[n]) / (steps * 0.05) for n in c})


def test_the_first_round_is_fedavg_with_equal_weights():
    running = Play(make("scaffold", lr=0.05), SHARDS)
    plain, x = make("fedavg", lr=0.05), running.server.model
    running.round()
    clients = [Client(name, held, Key(0).derive("client", name, 1, "fit")) for name, held in SHARDS.items()]
    replies = [worked(plain, Payload(x), client).reply.tensors for client in clients]
    names = parameters(plain, x)
    assert_close(
        parameters(plain, running.server.model), {n: torch.stack([r[n] for r in replies]).mean(0) for n in names}
    )
    samples = [len(held) for held in SHARDS.values()]
    for name in [name for name in x if name.endswith(("running_mean", "running_var"))]:
        mean = sum(n * r[name] for n, r in zip(samples, replies, strict=True)) / sum(samples)
        torch.testing.assert_close(running.server.model[name], mean)
        assert name not in running.server.memory.control
    assert set(running.server.memory.control) == set(names)


def test_c_is_the_mean_of_all_clients_control_variates_when_half_of_them_take_part():
    running = Play(make("scaffold", lr=0.05, global_lr=0.5), SHARDS, RoundRules(participation=0.5))
    asked: set[tuple[str, ...]] = set()
    for _ in range(5):
        before = {name: running.kept(name) for name in SHARDS}
        active = running.round().asked
        asked.add(tuple(active))
        after = {name: running.kept(name) for name in SHARDS}
        for name in set(SHARDS) - set(active):
            assert all(torch.equal(before[name][n], after[name][n]) for n in before[name])
        control = running.server.memory.control
        own = {name: after[name] or {n: torch.zeros_like(t) for n, t in control.items()} for name in SHARDS}
        assert_close(control, {n: torch.stack([own[k][n] for k in SHARDS]).mean(0) for n in control})
    assert len(asked) > 1


@pytest.mark.parametrize("global_lr", [1.0, 0.25])
def test_the_servers_step_goes_a_part_of_the_way_to_the_mean(global_lr):
    method = make("scaffold", lr=0.05, global_lr=global_lr)
    server, fit = method.initial(Key(0)).next_round(2), fit_of(method)
    replies = {k: worked(method, fit.ask(server, k), a_client(SHARDS[k], name=k)).reply for k in "ab"}
    x, y = server.model, parameters(method, server.model)
    mean = {n: (replies["a"].tensors[n] + replies["b"].tensors[n]) / 2 for n in y}
    found = parameters(method, fit.aggregate(server, replies).model)
    assert_close(found, {n: x[n] + global_lr * (mean[n] - x[n]) for n in y})


STEPS = [
    pytest.param({"lr": 0.2, "momentum": 0.0}, id="plain"),
    pytest.param({"lr": 0.05, "momentum": 0.9}, id="momentum"),
]


@pytest.mark.parametrize("how", STEPS)
@pytest.mark.parametrize("flat", [FLAT, MANY_FLAT], ids=["equal sizes", "unequal sizes"])
def test_on_quadratics_it_finds_the_joint_optimum_where_fedavg_does_not(flat, how):
    """Its objective is the mean of the clients' objectives: a client counts once, whatever its size."""
    shards, local = {"steep": STEEP, "flat": flat}, {"local_epochs": 20, "batch_size": 512, **how}
    optimum = joint_optimum(STEEP, FLAT)
    averaged = reached(Play(on_quadratics("fedavg", **local), {"steep": STEEP, "flat": FLAT}), 10)
    assert abs(averaged - optimum) > 0.15
    assert abs(reached(Play(on_quadratics("scaffold", **local), shards), 30) - optimum) < 0.005


def test_it_finds_the_joint_optimum_of_all_clients_when_half_of_them_take_part():
    shards = {"steep": STEEP, "flat": FLAT, "steep too": STEEP, "flat too": FLAT}
    method = on_quadratics("scaffold", local_epochs=10, batch_size=512, lr=0.1, momentum=0.0)
    running = Play(method, shards, RoundRules(participation=0.5))
    assert abs(reached(running, 80) - joint_optimum(STEEP, FLAT)) < 0.01
