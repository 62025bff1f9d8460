"""What all averaging methods share: schedules, weight decay, effective steps, and what a client sends besides."""

import json
import math

import pytest
import torch

import fedaf
from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingOptions, scheduled_lr, step_sum
from fedaf.methods.fedavg import FedAvg
from fedaf.protocol import Field, Key, Number, Payload, Schema
from support.errors import raises
from support.small import SMALL
from support.tiny import (
    AVERAGING,
    CONVNET,
    ENGINE,
    TASK,
    Play,
    a_client,
    assert_close,
    fit_of,
    make,
    shard,
    worked,
)


def rates(rounds: int, **options) -> list[float]:
    return [scheduled_lr(AveragingOptions(**options), t, rounds) for t in range(1, rounds + 1)]


def test_without_a_schedule_the_learning_rate_is_constant():
    assert rates(4, lr=0.3) == [0.3] * 4


def test_the_cosine_schedule_is_half_a_wave_from_lr_to_lr_min():
    found = rates(4, lr=0.5, lr_min=0.1, lr_schedule="cosine")
    assert found == pytest.approx([0.5, 0.3 + 0.2 * math.sqrt(0.5), 0.3, 0.3 - 0.2 * math.sqrt(0.5)])
    assert rates(1, lr=0.5, lr_schedule="cosine") == [0.5]
    assert min(rates(50, lr=0.5, lr_schedule="cosine")) > 0  # even the last round trains


def test_the_step_schedule_multiplies_every_few_rounds():
    assert rates(5, lr=0.8, lr_decay=0.5, lr_step=2, lr_schedule="step") == pytest.approx([0.8, 0.8, 0.4, 0.4, 0.2])


def test_a_cosine_schedule_that_would_rise_is_refused():
    with raises("FEDAF-CONFIG-VALUE") as refused:
        fedaf.run(method="fedavg", lr=0.01, lr_min=0.1, lr_schedule="cosine")
    assert "lr_min" in str(refused.value)


def at_round(method, round: int):
    """What the server sends in a round."""
    running = Play(method, {"a": shard(6, seed=1), "b": shard(6, seed=2)})
    for _ in range(round - 1):
        running.round()
    server = running.server.next_round(2)
    for phase in method.phases[:-1]:
        server = phase.aggregate(server, {"a": Payload(scalars={"samples": 6})})
    return fit_of(method).ask(server, "a")


@pytest.mark.parametrize("name", AVERAGING)
def test_every_method_trains_with_the_learning_rate_that_the_server_sends(name):
    schedule = {"lr_schedule": "step", "lr_step": 1, "lr_decay": 0.25}
    method, constant = make(name, lr=0.4, **schedule), make(name, lr=0.1)
    ask, client = at_round(method, 2), a_client(shard(9))
    assert ask.scalars["lr"] == pytest.approx(0.1)
    assert "lr" not in at_round(constant, 2).scalars
    sent = Payload(ask.tensors, {n: v for n, v in ask.scalars.items() if n != "lr"})
    one, other = (
        worked(method, Payload(ask.tensors, {**ask.scalars, "lr": 0.1}), client),
        worked(constant, sent, client),
    )
    assert all(torch.equal(t, other.reply.tensors[n]) for n, t in one.reply.tensors.items())
    assert one.reply.scalars == other.reply.scalars


@pytest.mark.parametrize("name", AVERAGING)
def test_weight_decay_adds_its_gradient_in_every_method(name):
    """Of one step: everything else is the same, so the difference is -lr decay w."""
    options = {"lr": 0.05, "batch_size": 16}
    plain, decayed = make(name, **options), make(name, weight_decay=0.5, **options)
    ask, client = at_round(plain, 1), a_client(shard(9))
    w = {n: t for n, t in fit_of(plain).weights(ask).items() if n in plain.trainable}
    found, without = (worked(method, ask, client).reply.tensors for method in (decayed, plain))
    assert_close({n: found[n] for n in w}, {n: without[n] - 0.05 * 0.5 * t for n, t in w.items()}, atol=1e-6)


def test_the_cosine_schedule_spans_the_rounds_of_a_run_and_is_logged(tmp_path):
    settings = {"model.width": 4, "run.device": "cpu"}
    how = {"clients": 2, "rounds": 4, "local_epochs": 1, "settings": settings}
    fedaf.run(method="fedavg", lr_schedule="cosine", **how, out=tmp_path / "run")
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in metrics] == pytest.approx(rates(4, lr_schedule="cosine"))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_the_length_of_a_way_is_that_of_steps_with_gradient_one(steps, momentum):
    update = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        update += velocity
    assert step_sum(steps, momentum) == pytest.approx(update)


@pytest.mark.parametrize("samples", [0, 1, 2, 8, 9, 10, 17])
def test_the_number_of_steps_is_that_of_the_batches_trained_on(samples):
    method = make("fedavg", batch_size=8, local_epochs=3)
    counted = []

    class Counting(averaging.Fit):
        def loss(self, model, ask, client, engine):
            return lambda images, labels: {"ce": counted.append(1) or model(images).sum()}

    fit = Counting(method)
    fit.work_one(Payload(method.initial(Key(0)).model), a_client(shard(samples)), ENGINE)
    assert fit.steps(samples) == len(counted)


class Telling(averaging.Fit):
    """Sends the norm of the trained model's first tensor, and a scalar."""

    def extra(self, model, ask, client, engine):
        assert not torch.equal(next(iter(model.state_dict().values())), next(iter(ask.tensors.values())))  # trained
        return Payload({"norm": next(model.parameters()).detach().norm()[None]}, {"owner": 3})

    def extra_schema(self, ask):
        return Schema({"norm": Field(torch.float32, (1,), low=0)}, {"owner": Number(int, 0, 5)})


def test_what_a_client_sends_besides_is_from_the_trained_model_and_checked():
    fit = Telling(make("fedavg", lr=0.1))
    ask = Payload(FedAvg(AveragingOptions(), TASK, CONVNET).initial(Key(0)).model)
    reply = fit.work_one(ask, a_client(shard(9)), ENGINE).reply
    fit.schema(ask).validate(reply)
    assert float(reply.tensors["norm"]) == pytest.approx(float(next(iter(reply.tensors.values())).norm()))
    assert {*reply.tensors} == {*ask.tensors, "norm"}
    with raises("FEDAF-REPLY-NAMES"):
        fit.schema(ask).validate(Payload({n: t for n, t in reply.tensors.items() if n != "norm"}, reply.scalars))
    with raises("FEDAF-REPLY-RANGE"):
        fit.schema(ask).validate(Payload(reply.tensors, {**reply.scalars, "owner": 6}))


def test_a_client_sends_what_upload_returns(monkeypatch):
    sent = []

    def halved(self, weights, ask, client):
        sent.append(client.id)
        return {name: weight / 2 if weight.is_floating_point() else weight for name, weight in weights.items()}

    plain = fedaf.run(**{**SMALL, "rounds": 1}, method="fedavg", local_epochs=1)
    monkeypatch.setattr(averaging.Fit, "upload", halved)
    changed = fedaf.run(**{**SMALL, "rounds": 1}, method="fedavg", local_epochs=1)
    assert len(sent) == len(set(sent)) > 1
    for name, weight in plain.model.state_dict().items():
        expected = weight / 2 if weight.is_floating_point() else weight
        torch.testing.assert_close(changed.model.state_dict()[name], expected)
