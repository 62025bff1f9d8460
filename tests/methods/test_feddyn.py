"""FedDyn against its closed forms, and on quadratics whose joint optimum FedAvg misses."""

import pytest
import torch
from torch import Tensor, nn

from fedaf.federation.rounds import RoundRules
from fedaf.methods.feddyn import dynamic_regulariser
from fedaf.protocol import Client, Key, Payload
from fedaf.training.fit import fit
from support.quadratics import FLAT, MANY_FLAT, STEEP, joint_optimum, on_quadratics, reached
from support.tiny import (
    CONVNET,
    ENGINE,
    TASK,
    Play,
    a_client,
    assert_close,
    fit_of,
    gradients,
    make,
    parameters,
    shard,
    worked,
)

SHARDS = {"a": shard(12, seed=1), "b": shard(4, seed=2), "c": shard(8, seed=3), "d": shard(16, seed=4)}


def somewhere(seed: int) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in CONVNET.build(Key(seed)).named_parameters()}


def test_the_regulariser_has_the_gradient_of_its_formula():
    model, h, w = CONVNET.build(Key(1)), somewhere(2), somewhere(3)
    linear = {name: h[name] - w[name] for name in h}
    found = gradients(dynamic_regulariser(model, linear), model)
    assert_close(found, {name: h[name] - w[name] + p.detach() for name, p in model.named_parameters()})


def test_its_value_is_a_linear_and_a_squared_term():
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -4.0]]))
    assert dynamic_regulariser(model, {"weight": torch.tensor([[2.0, 1.0]])}).item() == (6 - 4) + 25 / 2


@pytest.mark.parametrize("samples", [4, 16])
def test_alpha_of_a_client_is_scaled_by_the_mean_number_of_samples_over_its_own(samples):
    method, held = make("feddyn", alpha=0.2), shard(samples)
    w, h = method.initial(Key(0)).model, somewhere(2)
    model = method.build_model(Key(5))
    loss = fit_of(method).loss(model, Payload(w, {"mean_samples": 8.0}), a_client(held, h), ENGINE)
    dyn = loss(held.images / 255.0, held.labels)["dyn"]
    found = gradients(dyn.weight * dyn.term, model)
    expected = {name: 0.2 * 8 / samples * (h[name] - w[name] + p.detach()) for name, p in model.named_parameters()}
    assert_close(found, expected)


def test_the_mean_number_of_samples_is_right_from_the_first_round_on():
    running = Play(make("feddyn"), SHARDS)
    count, fit_phase = running.method.phases
    replies = {name: count.work_one(Payload(), a_client(held), ENGINE).reply for name, held in SHARDS.items()}
    assert fit_phase.ask(count.aggregate(running.server, replies), "a").scalars == {"mean_samples": 10.0}
    running.round()
    assert running.server.memory.samples == {name: len(held) for name, held in SHARDS.items()}


def test_under_partial_participation_the_mean_is_over_all_clients_that_ever_replied():
    running = Play(make("feddyn"), SHARDS, RoundRules(participation=0.5))
    heard: set[str] = set()
    for _ in range(6):
        heard |= set(running.round().asked)
        mean = sum(len(SHARDS[name]) for name in heard) / len(heard)
        assert fit_of(running.method).ask(running.server, "a").scalars == {"mean_samples": pytest.approx(mean)}
    assert heard == set(SHARDS)


def test_gradients_are_clipped_at_norm_10():
    method, held = make("feddyn", alpha=1e4, lr=1.0), shard(8)
    w = method.initial(Key(0)).model
    h = {name: torch.ones_like(t) for name, t in parameters(method, w).items()}
    reply = worked(method, Payload(w, {"mean_samples": 8.0}), a_client(held, h)).reply
    step = torch.cat([(reply.tensors[name] - w[name]).flatten() for name in h])
    assert float(step.norm()) == pytest.approx(10, rel=1e-3)


def test_the_clip_of_training_leaves_small_gradients_alone():
    def trained(clip: float | None) -> dict[str, Tensor]:
        model, held = CONVNET.build(Key(0)), shard(8)
        how = {"epochs": 1, "batch_size": 8, "lr": 0.1, "momentum": 0.0, "key": Key(1), "engine": ENGINE}
        fit(model, held.images, held.labels, task=TASK, clip=clip, **how)
        return dict(model.state_dict())

    free, wide, tight = trained(None), trained(1e6), trained(1e-3)
    assert all(torch.equal(free[name], wide[name]) for name in free)
    start = somewhere(0)
    norm = torch.cat([(tight[name] - start[name]).flatten() for name in start]).norm()
    assert float(norm) == pytest.approx(0.1 * 1e-3, rel=1e-2)


def test_the_server_mixes_the_mean_model_with_the_mean_drift_of_all_clients():
    """Two of four clients per round: h of the other two stays the same and still counts in the mean."""
    running = Play(make("feddyn", lr=0.05), SHARDS, RoundRules(participation=0.5))
    names = list(parameters(running.method, running.server.model))
    asked: set[tuple[str, ...]] = set()
    for _ in range(6):
        w = fit_of(running.method).ask(running.server, "a").tensors if running.server.round else running.server.model
        before = {name: running.kept(name) for name in SHARDS}
        active = running.round().asked
        asked.add(tuple(active))
        after = {name: running.kept(name) for name in SHARDS}
        for name in set(SHARDS) - set(active):
            assert all(torch.equal(before[name][n], after[name][n]) for n in before[name])
        h = {name: after[name] or {n: torch.zeros_like(w[n]) for n in names} for name in SHARDS}
        old = {name: before[name] or {n: torch.zeros_like(w[n]) for n in names} for name in SHARDS}
        theta = {n: torch.stack([h[k][n] - old[k][n] + w[n] for k in active]).mean(0) for n in names}
        mean_h = {n: torch.stack([h[k][n] for k in SHARDS]).mean(0) for n in names}
        assert_close(parameters(running.method, running.server.model), theta)  # what accuracy is measured of
        assert_close(running.server.memory.drift, mean_h)
        sent = parameters(running.method, fit_of(running.method).ask(running.server, "a").tensors)
        assert_close(sent, {n: theta[n] + mean_h[n] for n in names})
    assert len(asked) > 1


def test_a_client_keeps_the_sum_of_its_drifts_and_no_statistics():
    method, held = make("feddyn", lr=0.05), shard(8)
    w, h = method.initial(Key(0)).model, somewhere(2)
    outcome = worked(method, Payload(w, {"mean_samples": 8.0}), a_client(held, h))
    theta = outcome.reply.tensors
    assert_close(outcome.state, {name: h[name] + theta[name] - w[name] for name in h})
    first = worked(method, Payload(w, {"mean_samples": 8.0}), a_client(held))
    assert_close(first.state, {name: first.reply.tensors[name] - w[name] for name in h})
    assert not any("running" in name or "tracked" in name for name in outcome.state)


def test_running_statistics_are_averaged_by_samples_and_sent_as_they_are():
    method = make("feddyn", lr=0.05)
    running = Play(method, {"a": SHARDS["a"], "b": SHARDS["b"]})
    w = running.server.model
    asks = Payload(w, {"mean_samples": 8.0})
    replies = {
        name: fit_of(method).work_one(asks, Client(name, held, Key(0).derive("client", name, 1, "fit")), ENGINE).reply
        for name, held in running.shards.items()
    }
    running.round()
    statistics = [name for name in w if name.endswith(("running_mean", "running_var"))]
    assert statistics
    for name in statistics:
        mean = (12 * replies["a"].tensors[name] + 4 * replies["b"].tensors[name]) / 16
        torch.testing.assert_close(running.server.model[name], mean)
        torch.testing.assert_close(fit_of(method).ask(running.server, "a").tensors[name], mean)
        assert name not in running.server.memory.drift


LOCAL = {"local_epochs": 15, "batch_size": 512, "lr": 1.0, "momentum": 0.0}


@pytest.mark.parametrize("flat", [FLAT, MANY_FLAT], ids=["equal sizes", "unequal sizes"])
def test_on_quadratics_it_finds_the_joint_optimum_where_fedavg_does_not(flat):
    shards = {"steep": STEEP, "flat": flat}
    optimum = joint_optimum(STEEP, flat)
    averaged = reached(Play(on_quadratics("fedavg", **LOCAL), shards), 10)
    dynamic = Play(on_quadratics("feddyn", alpha=0.3, **LOCAL), shards)
    assert abs(averaged - len(STEEP) / (len(STEEP) + len(flat))) < 0.05  # near the mean of the clients' optima
    assert abs(averaged - optimum) > 0.2
    assert abs(reached(dynamic, 15) - optimum) < 0.005


def test_it_finds_the_joint_optimum_of_all_clients_when_half_of_them_take_part():
    shards = {"steep": STEEP, "flat": FLAT, "steep too": STEEP, "flat too": FLAT}
    running = Play(on_quadratics("feddyn", alpha=0.3, **LOCAL), shards, RoundRules(participation=0.5))
    assert abs(reached(running, 30) - joint_optimum(STEEP, FLAT)) < 0.01
