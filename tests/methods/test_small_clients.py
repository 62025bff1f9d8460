"""Clients with hardly any data: every averaging method continues, and all values stay finite."""

import pytest
import torch

from fedaf.protocol import Key, Shard
from fedaf.protocol.records import to_tensors
from support.tiny import AVERAGING, ENGINE, Play, a_client, make, shard

BATCH = 8
#: Each takes part together with a client that has enough data.
ODD = {
    "one class": shard(20, (1,), seed=2),
    "fewer samples than a batch": shard(3, seed=3),
    "one sample over": shard(BATCH + 1, seed=4),
    "two samples": shard(2, seed=5),
    "one sample": shard(1, seed=6),
    "nothing": shard(0, seed=7),
}
SMALL_GENERATOR = {"noise_dim": 4, "hidden_dim": 8, "generator_batch": 4, "generator_steps": 2}
every_method = pytest.mark.parametrize("name", AVERAGING)


def method_of(name: str):
    generator = SMALL_GENERATOR if name == "fedgen" else {}
    return make(name, lr=0.05, batch_size=BATCH, local_epochs=2, momentum=0.9, **generator)


def played(name: str, shards: dict[str, Shard], rounds: int = 3) -> Play:
    running = Play(method_of(name), shards)
    for _ in range(rounds):
        report = running.round()
        assert report.accepted == list(shards)
        assert not [reason for reason in report.failures.values() if not reason.startswith("evaluate")]
        tensors = [
            *running.server.model.values(),
            *to_tensors(running.server.memory).values(),
        ]
        tensors += [t for client in shards for t in running.kept(client).values()]
        assert all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point())
        assert all(bool((t >= 0).all()) for n, t in running.server.model.items() if n.endswith("running_var"))
    return running


@every_method
@pytest.mark.parametrize("kind", ODD)
def test_a_client_with_hardly_any_data_takes_part(name, kind):
    played(name, {"whole": shard(24, seed=1), "odd": ODD[kind]})


@every_method
@pytest.mark.parametrize("kind", ["one sample", "nothing"])
def test_a_federation_of_such_clients_alone_keeps_its_model(name, kind):
    running = played(name, {"a": ODD[kind], "b": ODD[kind]}, rounds=2)
    start = running.method.initial(running.server.key).model
    for tensor, before in zip(running.server.model.values(), start.values(), strict=True):
        torch.testing.assert_close(tensor, before)


@every_method
def test_a_client_without_data_has_weight_zero_where_samples_are_weights(name):
    """A client without data returns the model unchanged; it counts only in methods with equal weights."""
    alone = played(name, {"whole": shard(24, seed=1)}, rounds=1).server.model
    both = played(name, {"whole": shard(24, seed=1), "odd": ODD["nothing"]}, rounds=1).server.model
    first = next(iter(alone))
    equal = torch.equal(alone[first], both[first])
    assert equal == (name not in ("fedbn", "feddyn", "scaffold"))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "moon", "fedgen"])
def test_the_average_of_replies_is_weighted_by_samples_and_that_of_identical_ones_is_the_identity(name):
    method = method_of(name)
    server, (fit,) = method.initial(Key(0)).next_round(3), method.phases
    ask = fit.ask(server, "a")
    replies = [fit.work_one(ask, a_client(shard(n, seed=n), name=str(n)), ENGINE).reply for n in (4, 12)]
    mixed = fit.aggregate(server, {"a": replies[0], "b": replies[1]}).model
    for tensor_name, tensor in mixed.items():
        if tensor.is_floating_point():
            expected = (4 * replies[0].tensors[tensor_name] + 12 * replies[1].tensors[tensor_name]) / 16
            torch.testing.assert_close(tensor, expected)
    same = fit.aggregate(server, dict.fromkeys("abc", replies[1])).model
    assert all(torch.equal(tensor, replies[1].tensors[n]) for n, tensor in same.items())
