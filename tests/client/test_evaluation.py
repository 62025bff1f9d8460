"""Evaluation by clients: figures over all their test samples together."""

import pytest

from fedaf.client.evaluation import Evaluate, pooled
from fedaf.protocol import Key, Payload, Refused
from fedaf.training.scores import UNDEFINED
from support.tiny import ENGINE, a_client, make, shard

METHOD = make("fedavg")
SERVER = METHOD.initial(Key(0))


def reply(accuracy: float, loss: float, samples: int) -> Payload:
    return Payload(scalars={"accuracy": accuracy, "loss": loss, "samples": samples})


def test_a_client_counts_by_its_test_samples():
    replies = {"a": reply(100.0, 0.5, 10), "b": reply(50.0, 1.5, 30), "none": reply(0.0, UNDEFINED, 0)}
    log = Evaluate(METHOD).aggregate(SERVER, replies).log
    assert log == {"accuracy": 62.5, "loss": 1.25, "accuracy_by_client": {"a": 100.0, "b": 50.0}}
    assert pooled({}, {}) is None


def test_a_loss_that_one_client_does_not_know_is_unknown():
    replies = {"a": reply(100.0, 0.5, 10), "b": reply(50.0, UNDEFINED, 30)}
    log = Evaluate(METHOD).aggregate(SERVER, replies).log
    assert (log["accuracy"], log["loss"]) == (62.5, None)


def test_without_test_samples_nothing_is_known():
    assert Evaluate(METHOD).aggregate(SERVER, {"a": reply(0.0, UNDEFINED, 0)}) is SERVER


def test_what_a_client_sends_is_what_the_schema_wants():
    phase = Evaluate(METHOD)
    ask = phase.ask(SERVER, "a")
    sent = phase.work_one(ask, a_client(shard(12)), ENGINE).reply
    phase.schema(ask).validate(sent)
    assert sent.scalars.keys() == {"accuracy", "loss", "samples"}
    with pytest.raises(Refused):
        phase.schema(ask).validate(reply(50.0, -2.0, 3))
