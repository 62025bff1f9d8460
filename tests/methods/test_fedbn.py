"""FedBN: BatchNorm layers stay with their client, whatever their names; two accuracies are reported."""

import pytest
import torch
from torch import Tensor, nn

import fedaf
from fedaf.data.dataset import DataSet, Split
from fedaf.data.partitions.domain import by_domain
from fedaf.data.partitions.iid import iid
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundRules
from fedaf.methods.fedbn import batch_norm_tensors
from fedaf.protocol import Client, Key, Shard
from fedaf.training.evaluate import predict
from support.small import SMALL
from support.tiny import CLASSES, ENGINE, TASK, Play, a_client, make, of, shard, worked


class Misnamed(nn.Module):
    """A convolution called bn, a BatchNorm called foo, and a BatchNorm named like another kind of layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.Conv2d(1, 4, 3, padding=1)
        self.foo = nn.BatchNorm2d(4)
        self.batchnorm = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4, affine=False))
        self.group = nn.GroupNorm(2, 4)
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.group(self.batchnorm(torch.relu(self.foo(self.bn(x))))).flatten(1))
        return out


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
OWN = {f"foo.{name}" for name in ("weight", "bias", *STATISTICS)} | {f"batchnorm.1.{name}" for name in STATISTICS}
SHARED = {f"{layer}.{name}" for layer in ("bn", "batchnorm.0", "group", "out") for name in ("weight", "bias")}
SHARDS = {"a": shard(12, (0,), seed=1), "b": shard(6, (1, 2), seed=2), "c": shard(9, seed=3)}


def play(terms: RoundRules | None = None, **options) -> Play:
    return Play(make("fedbn", of(Misnamed), lr=0.1, **options), SHARDS, terms)


def test_batch_norm_layers_are_found_by_type():
    assert batch_norm_tensors(Misnamed()) == OWN
    assert set(Misnamed().state_dict()) == OWN | SHARED
    assert batch_norm_tensors(nn.BatchNorm1d(3)) == {"weight", "bias", *STATISTICS}


def test_what_is_asked_and_what_is_sent_holds_no_batch_norm():
    running = play()
    running.round()
    (fit,) = running.method.phases
    ask = fit.ask(running.server, "a")
    assert set(ask.tensors) == SHARED
    outcome = worked(running.method, ask, a_client(SHARDS["a"], running.kept("a")))
    assert set(outcome.reply.tensors) == set(fit.schema(ask).fields) == SHARED
    assert set(outcome.state) == OWN


def test_the_rest_is_averaged_with_equal_weights_and_then_batch_norm_too():
    running = play()
    (fit,) = running.method.phases
    ask = fit.ask(running.server.next_round(3), "a")
    keys = {name: Key(0).derive("client", name, 1, "fit") for name in SHARDS}
    outcomes = [fit.work_one(ask, Client(name, held, keys[name]), ENGINE) for name, held in SHARDS.items()]
    running.round()
    for name in SHARED:
        mean = torch.stack([outcome.reply.tensors[name] for outcome in outcomes]).mean(0)
        torch.testing.assert_close(running.server.model[name], mean)
    for name in OWN - {n for n in OWN if n.endswith("tracked")}:
        mean = torch.stack([outcome.state[name] for outcome in outcomes]).mean(0)
        torch.testing.assert_close(running.server.model[name], mean)
        assert any(not torch.allclose(outcome.state[name], mean, atol=1e-3) for outcome in outcomes)


def test_a_client_starts_from_its_own_batch_norm_and_the_new_average():
    running = play()
    running.round()
    own, average = running.kept("b"), running.server.model
    model = running.method.build_model(Key(0))
    phase = running.method.phases[0]
    phase.load(model, phase.ask(running.server, "b"), a_client(SHARDS["b"], own))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, own[name] if name in OWN else average[name])
    assert not torch.equal(own["foo.running_mean"], average["foo.running_mean"])


def test_personal_accuracy_is_of_the_clients_batch_norm_in_the_new_average_on_its_own_test_data():
    running = play()
    for _ in range(2):
        running.round()
    for name, held in SHARDS.items():
        model = running.method.build_model(Key(0))
        shared = {n: t for n, t in running.server.model.items() if n in SHARED}
        model.load_state_dict({**shared, **running.kept(name)})
        right = predict(model, held.test.images, TASK, ENGINE).argmax(1) == held.test.labels
        assert running.server.log["personal_accuracy"][name] == pytest.approx(100 * float(right.float().mean()))


def test_a_personal_model_is_also_judged_on_its_clients_label_distribution():
    running = play()
    running.round()
    for name, held in SHARDS.items():
        model = running.method.build_model(Key(0))
        shared = {n: t for n, t in running.server.model.items() if n in SHARED}
        model.load_state_dict({**shared, **running.kept(name)})
        right = (predict(model, held.test.images, TASK, ENGINE).argmax(1) == held.test.labels).double()
        expected = sum(
            (held.labels == label).double().mean() * right[held.test.labels == label].mean()
            for label in held.labels.unique()
        )
        assert running.server.log["personal_own_accuracy"][name] == pytest.approx(100 * float(expected))


def test_a_client_whose_classes_are_not_tested_has_no_accuracy_on_its_label_distribution():
    other = Shard(SHARDS["a"].images, SHARDS["a"].labels, CLASSES, SHARDS["b"].test)  # class 0, tested on 1 and 2
    running = Play(make("fedbn", of(Misnamed)), {**SHARDS, "a": other})
    assert running.round().failures == {}
    assert set(running.server.log["personal_accuracy"]) == {"a", "b", "c"}
    assert set(running.server.log["personal_own_accuracy"]) == {"b", "c"}


def test_bytes_of_the_report_are_counted_apart():
    report = play().round()
    assert set(report.upload) == set(report.download) == {"fit"}
    state = Misnamed().state_dict()
    batch_norm = sum(state[name].numel() * state[name].element_size() for name in OWN)
    for client in SHARDS:
        sent = report.evaluation["upload"][client] - batch_norm
        assert 0 < sent < 100  # two accuracies and the number of samples, as text
        assert report.evaluation["download"][client] == report.download["fit"][client]


def test_evaluating_changes_nothing_that_the_next_round_sees():
    class Unreported(type(make("fedbn"))):
        evaluation = None

    with_report, without = play(), play()
    method = with_report.method
    without.method = Unreported(method.options, method.task, method.architecture)
    for running in (with_report, without):
        for _ in range(3):
            running.round()
    assert all(torch.equal(with_report.server.model[name], without.server.model[name]) for name in SHARED)
    for client in SHARDS:
        left, right = with_report.kept(client), without.kept(client)
        assert all(torch.equal(left[name], right[name]) for name in OWN)


def test_batch_norm_of_a_client_survives_a_restart_and_rounds_it_does_not_take_part_in():
    """A client that was not asked keeps its layers, also over a checkpoint."""
    whole, cut = play(RoundRules(participation=0.5)), play(RoundRules(participation=0.5))
    asked = [tuple(whole.round().asked) for _ in range(5)]
    assert len(set(asked)) > 1, "all rounds asked the same clients"
    for _ in range(2):
        cut.round()
    again = play(RoundRules(participation=0.5))
    again.server, again.accepted = cut.server, dict(cut.accepted)
    again.transport.restore(cut.transport.checkpoint())
    for _ in range(3):
        again.round()
    assert all(torch.equal(whole.server.model[name], t) for name, t in again.server.model.items())
    for client in SHARDS:
        left, right = whole.kept(client), again.kept(client)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_client_without_test_data_costs_its_figure_and_not_its_round():
    nothing = Shard(SHARDS["b"].images[:0], SHARDS["b"].labels[:0], CLASSES)
    for test in (None, nothing):
        bare = Shard(SHARDS["b"].images, SHARDS["b"].labels, CLASSES, test)
        running = Play(make("fedbn", of(Misnamed)), {**SHARDS, "b": bare})
        report = running.round()
        assert report.accepted == ["a", "b", "c"]
        assert list(report.failures) == ["b"]
        assert report.failures["b"].startswith("evaluate: ")
        assert set(running.server.log["personal_accuracy"]) == {"a", "c"}


class Listening(Observer):
    def __init__(self) -> None:
        self.announced, self.begun = 0, []

    def started(self, *, phases: int, **_: object) -> None:
        self.announced = phases

    def phase_started(self, name: str, clients: int) -> None:
        self.begun.append(name)


def test_who_watches_a_run_is_told_of_the_report_as_of_any_phase():
    watching = Listening()
    fedaf.run(**{**SMALL, "rounds": 1}, method="fedbn", local_epochs=1, observer=watching)
    assert watching.begun == ["fit", "server", "evaluate"]
    assert watching.announced == 2  # the server's own work is no exchange


def two_domains(labels: Tensor, domains: Tensor) -> Split:
    images = torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    return Split(images, labels, domains)


def test_a_clients_own_test_data_are_its_domains_or_else_the_central_ones():
    train = two_domains(torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))
    test = two_domains(torch.tensor([0, 1, 1]), torch.tensor([1, 0, 1]))
    data = DataSet("two", train, test, 2, (0.5,), (0.25,), domains=("photo", "sketch"))
    shards = by_domain(train.domains.numpy(), data.domains).shards(data)
    assert {name: held.test.images[:, 0, 0, 0].tolist() for name, held in shards.items()} == {
        "photo": [1],
        "sketch": [0, 2],
    }
    plain = DataSet("one", Split(train.images, train.labels), Split(test.images, test.labels), 2, (0.5,), (0.25,))
    for held in iid(train.labels.numpy(), 2, Key(0)).shards(plain).values():
        assert held.test.labels.tolist() == [0, 1, 1]
