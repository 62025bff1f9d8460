"""Condensation against a release: the private data are read once, noise is drawn once, and nothing else gets out."""

import json
import logging
import math
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedaf
from fedaf import config as configuration
from fedaf.client.evaluation import Evaluate
from fedaf.config.policies import policy_toml
from fedaf.federation.rounds import RoundRules
from fedaf.methods import private
from fedaf.methods.private import Releases
from fedaf.methods.registry import METHODS
from fedaf.privacy.accountant import Budget, compose
from fedaf.privacy.noise import rounded_gaussian, seeded_bytes, system_bytes
from fedaf.privacy.release import LATTICE
from fedaf.privacy.source import ReleasedMeans
from fedaf.protocol import BelowQuorum, Client, Key, Payload, Policy, Replied, Request, Shard
from fedaf.protocol.policy import nearest_power_of_two
from fedaf.runs.experiment import prepare
from fedaf.training.scores import UNDEFINED
from support.errors import raises
from support.private import (
    FEDAF,
    OPTIONS,
    PRIVACY,
    Recorded,
    condensed_images,
    entries,
    flat,
    poisoned,
    private_experiment,
    private_tables,
    same,
    stored_releases,
    untouchable,
)
from support.small import Rounds, local

KNOWLEDGE = {"knowledge_share": 0.3, "releases": 2}
CASES = [("feddm", {}), ("fedaf", {}), ("fedaf-plus", {}), ("fedaf", KNOWLEDGE), ("feddm", {"releases": 2})]
METHOD_CASES = pytest.mark.parametrize(
    ("method", "privacy"), CASES, ids=[f"{method} {' '.join(privacy)}".strip() for method, privacy in CASES]
)


def played(experiment: Any, ledgers: Path, rounds: int = 1, **how: Any) -> Rounds:
    """Rounds with these ledgers; the run has the same name and server key each time."""
    found = Rounds(experiment, Recorded(experiment, ledgers, **how))
    for _ in range(rounds):
        found.play()
    return found


@METHOD_CASES
def test_after_the_release_the_private_images_are_unreachable(method, privacy, tmp_path):
    experiment, rounds = private_experiment(method, privacy), privacy.get("releases", 1) + 1
    first = condensed_images(played(experiment, tmp_path / "ledger", rounds))
    assert sum(map(len, first.values())) > 5
    for data in (poisoned, untouchable):
        assert same(condensed_images(played(experiment, tmp_path / "ledger", rounds, data=data)), first)
    anew = condensed_images(played(experiment, tmp_path / "new", rounds, data=poisoned))
    assert not same(anew, first)  # what is compared does depend on the data


class Draws:
    """Counts calls of the source of random bytes."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, count: int) -> bytes:
        self.calls += 1
        return system_bytes(count)


def draws(steps: int, ledgers: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    counted = Draws()
    monkeypatch.setattr(private, "system_bytes", counted)
    played(private_experiment("feddm", local_steps=steps), ledgers)
    return counted.calls


def test_noise_is_drawn_once_however_many_steps_follow(tmp_path, monkeypatch):
    """For each of two clients once for its sums and once for its counts."""
    assert [draws(steps, tmp_path / str(steps), monkeypatch) for steps in (1, 10, 200)] == [4, 4, 4]


def test_a_replay_draws_no_noise(tmp_path, monkeypatch):
    assert [draws(3, tmp_path / "ledger", monkeypatch) for _ in range(2)] == [4, 0]


def test_noise_drawn_anew_at_each_step_would_be_counted(tmp_path, monkeypatch):
    class DrawnAnew(ReleasedMeans):
        def draw(self, step: int) -> None:
            super().draw(step)
            assert self._current is not None
            noise = rounded_gaussian(1.0, self._current.numel(), private.system_bytes)
            self._current += noise.reshape(self._current.shape)

    monkeypatch.setattr(private, "ReleasedMeans", DrawnAnew)
    assert [draws(steps, tmp_path / str(steps), monkeypatch) for steps in (1, 10)] == [5, 14]


def twice(ledgers: Path) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """The noisy sums and the images of two runs with the same server key and data, and a ledger of each."""
    experiment = private_experiment("feddm")
    images = [condensed_images(played(experiment, ledgers / name)) for name in "ab"]
    sums = [torch.stack([r.sums for r in stored_releases(ledgers / name).values()]) for name in "ab"]
    return sums, images


def test_the_same_server_key_gives_other_noise_and_other_images(tmp_path):
    (first, second), images = twice(tmp_path)
    assert (first == second).double().mean() < 0.01
    assert not same(*images)
    noise = Budget.of(private_experiment("feddm").method.privacy).sums_noise
    expected = noise * math.sqrt(2) * LATTICE * math.sqrt(2)  # of two networks; of a difference of two
    assert (first - second).double().std().item() == pytest.approx(expected, rel=0.1)


def test_noise_from_the_servers_key_would_be_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(Releases, "_noise", lambda self, request, client: seeded_bytes(request.key.value))
    (first, second), images = twice(tmp_path)
    assert torch.equal(first, second)
    assert same(*images)


def test_clients_have_noise_of_their_own_also_if_it_is_simulated(tmp_path):
    experiment = private_experiment("feddm", {"simulate_seed": 1})
    made: list[Tensor] = []
    for name in "ab":
        with raises("FEDAF-CONDENSE-NO-IMAGES") as error:
            played(experiment, tmp_path / name, data=lambda shard: Shard(shard.images[:0], shard.labels[:0], 10))
        assert "privacy.epsilon" in str(error.value)
        made += [release.sums for release in stored_releases(tmp_path / name).values()]
    assert torch.equal(made[0], made[2])
    assert torch.equal(made[1], made[3])
    assert (made[0] == made[1]).double().mean() < 0.01


class Spied:
    """What a release was made of, seen from inside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.exact: list[Tensor] = []  # sums by class and network, and counts
        self.noise: list[Tensor] = []
        for name in ("add_noise", "add_count_noise"):
            monkeypatch.setattr(private, name, self._around(getattr(private, name)))

    def _around(self, add: Any) -> Any:
        def spied(exact: Tensor, multiplier: float, source: Any) -> Tensor:
            noisy: Tensor = add(exact, multiplier, source)
            while not (noisy - exact)[..., :8].any(-1).all():  # integer noise on counts may be 0 throughout
                noisy = add(exact, multiplier, source)
            self.exact.append(exact)
            self.noise.append(noisy - exact)
            return noisy

        return spied

    def needles(self) -> Iterator[bytes]:
        """Exact sums, exact counts, exact means and noise, as bytes that a file could hold."""
        for tensor in (*self.exact, *self.noise):
            for row in tensor.reshape(-1, tensor.shape[-1]):
                if row.count_nonzero() >= 4:  # a row of zeros is everywhere
                    for values in (row, row.double(), row.double() / LATTICE, (row.double() / LATTICE).float()):
                        yield values[:8].contiguous().numpy().tobytes()
        for counts in (tensor for tensor in self.exact if tensor.ndim == 1):
            yield from (str(counts.tolist()).encode(), json.dumps(counts.tolist(), separators=(",", ":")).encode())
            yield from (counts.to(kind).numpy().tobytes() for kind in (torch.int32, torch.float32))
        sums, counts = (tensor for tensor in self.exact[-2:])
        for mean in (sums.double() / LATTICE / counts.clamp(min=1)[:, None, None]).flatten(0, 1):
            yield from (values[:8].contiguous().numpy().tobytes() for values in (mean, mean.float()))

    def found_in(self, *places: bytes) -> list[bytes]:
        return [needle for needle in self.needles() if any(needle in place for place in places)]


def contents(folder: Path) -> list[bytes]:
    """All files of a run. Which client has which image stays in ``partition.json``, which is at the sites."""
    return [file.read_bytes() for file in folder.rglob("*") if file.is_file() and file.name != "partition.json"]


@METHOD_CASES
def test_no_exact_sum_or_count_and_no_noise_leaves_the_release(method, privacy, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    spied, rounds = Spied(monkeypatch), privacy.get("releases", 1) + 1
    given = private_tables(method, privacy, rounds=rounds)
    fedaf.run(settings=flat(given), out=tmp_path / "run")
    assert len(list(spied.needles())) > 50
    assert spied.found_in(*contents(tmp_path / "run"), caplog.text.encode()) == []
    transport = Recorded(experiment := private_experiment(method, privacy), tmp_path / "ledger")
    rounds_played = Rounds(experiment, transport)
    for _ in range(rounds):
        rounds_played.play()
    assert len(transport.replies) >= 2 * rounds
    sent = [reply.payload.encode() for reply in transport.replies] + [
        request.encode() for request in transport.requests
    ]
    assert spied.found_in(*sent) == []


def test_an_exact_sum_in_a_clients_state_would_be_found(tmp_path, monkeypatch):
    spied, outcome = Spied(monkeypatch), private.PrivateCondense._private_outcome

    def leaking(self: Any, *given: Any) -> Any:
        made = outcome(self, *given)
        made.state["sums"] = spied.exact[0]
        return made

    monkeypatch.setattr(private.PrivateCondense, "_private_outcome", leaking)
    fedaf.run(settings=flat(private_tables("feddm")), out=tmp_path / "run")
    assert spied.found_in(*contents(tmp_path / "run"))


@METHOD_CASES
def test_a_reply_has_classes_images_losses_and_rounded_noisy_counts_only(method, privacy, tmp_path):
    experiment = private_experiment(method, privacy)
    transport = Recorded(experiment, tmp_path)
    Rounds(experiment, transport).play()
    replies = [
        reply.payload
        for request, reply in zip(transport.requests, transport.replies, strict=True)
        if request.phase == "condense"
    ]
    assert len(replies) == 2
    losses = {"loss_dm"} if method == "feddm" else {"loss_dm", "loss_cdc", "gradient_ratio"}
    releases = list(stored_releases(tmp_path).values())
    for reply, release in zip(replies, releases, strict=True):
        assert set(reply.tensors) == {"classes", "images", "samples"}
        assert set(reply.scalars) == losses
        noisy = release.counts[reply.tensors["classes"]].tolist()
        assert reply.tensors["samples"].tolist() == [nearest_power_of_two(count) for count in noisy]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Whole runs by method and privacy; each is made once."""
    made: dict[str, Path] = {}

    def run(method: str, privacy: dict[str, Any], rounds: int) -> Path:
        name = json.dumps([method, privacy, rounds])
        if name not in made:
            made[name] = tmp_path_factory.mktemp("private") / "run"
            fedaf.run(settings=flat(private_tables(method, privacy, rounds=rounds)), out=made[name])
        return made[name]

    return run


@METHOD_CASES
def test_a_run_ends_and_pays_for_its_releases_only(method, privacy, finished):
    out, releases = finished(method, privacy, 3), privacy.get("releases", 1)
    result = json.loads((out / "result.json").read_text())
    assert result["rounds"] == 3
    assert result["last_accuracy"] > 0
    mu = Budget.of(configuration.build(private_tables(method, privacy)).privacy).mu
    for client, of_client in entries(out / "privacy").items():
        assert [entry.round for entry in of_client] == list(range(1, releases + 1)), client
        assert compose(*(entry.mu for entry in of_client)) == pytest.approx(mu)
        assert not any(entry.simulated for entry in of_client)
        assert result["privacy"]["spent_epsilon"][client] == pytest.approx(50.0)
    assert result["privacy"]["noise_source"] == "operating system"
    assert "warning" not in result["privacy"]


@METHOD_CASES
def test_results_have_no_audit_no_exact_count_and_no_accuracy_by_client(method, privacy, finished):
    out = finished(method, privacy, 3)
    result = json.loads((out / "result.json").read_text())
    assert [result[name] for name in ("copy_audit", "disclosed", "left_out", "personal")] == [None] * 4
    texts = {name: (out / name).read_text() for name in ("result.json", "metrics.jsonl", "events.jsonl")}
    for name, text in texts.items():
        for word in ("audit_", "held_out_", "psnr", "disclosure", "by_client", "own_accuracy", "per_sample"):
            assert word not in text, name


def test_a_simulated_run_says_that_it_is_not_private(finished):
    stated = json.loads((finished("feddm", {"simulate_seed": 3}, 1) / "result.json").read_text())["privacy"]
    assert stated["simulated"]
    assert stated["warning"].startswith("NOT PRIVATE")


def test_a_client_sends_no_accuracy_and_does_not_look_at_its_test_data():
    experiment = private_experiment("feddm")
    shard = untouchable(Shard(torch.zeros(1), torch.tensor([0]), 10))
    client = Client("client-0", Shard(shard.images, shard.labels, 10, shard), Key(0))
    server = experiment.method.initial(Key(0))
    phase = Evaluate(experiment.method)
    reply = phase.work_one(phase.ask(server, "client-0"), client, experiment.engine).reply
    assert reply.tensors == {}
    assert reply.scalars == {"accuracy": 0.0, "loss": UNDEFINED, "samples": 0}
    assert phase.aggregate(server, {"client-0": reply}).log == {}


@pytest.mark.parametrize("number", [0, 3, -1, 1.0, "1", None])
def test_a_server_that_asks_for_another_release_than_the_budget_is_divided_by_is_refused(number, tmp_path):
    experiment = private_experiment("feddm", {"releases": 2})
    server = experiment.method.initial(Key(0)).next_round(2)
    (phase,) = experiment.method.phases
    ask = phase.ask(server, "client-0")
    scalars = {**ask.scalars, "round": number}
    forged = Payload(ask.tensors, {key: value for key, value in scalars.items() if value is not None})
    client = Client("client-0", untouchable(Shard(torch.zeros(1), torch.tensor([0]), 10)), Key(0))
    with raises("FEDAF-PRIVACY-RELEASES"):
        phase.work_one(forged, client, experiment.engine)


def test_a_server_that_asks_for_the_same_release_with_another_key_is_refused(tmp_path):
    """It would average the noise out, and a run would cost more than its epsilon."""
    experiment = private_experiment("feddm")
    transport = Recorded(experiment, tmp_path)
    rounds = Rounds(experiment, transport)
    rounds.play()
    rounds.server = experiment.method.initial(Key(1))
    with pytest.raises(BelowQuorum, match="FEDAF-PRIVACY-CHANGED"):
        rounds.play()
    budget = Budget.of(experiment.method.privacy)
    for of_client in entries(tmp_path).values():
        assert compose(*(entry.mu for entry in of_client)) == pytest.approx(budget.mu)


def test_settings_of_privacy_without_epsilon_are_refused():
    with raises("FEDAF-PRIVACY-OFF"):
        configuration.build({"data": {"name": "digits"}, "privacy": {"delta": 1e-6}})


def test_a_share_for_knowledge_is_refused_by_a_method_that_sends_none():
    with raises("FEDAF-PRIVACY-OPTION") as refusal:
        configuration.build(private_tables("feddm", {"knowledge_share": 0.2}))
    assert "privacy.knowledge_share" in str(refusal.value)


def test_a_second_run_over_max_epsilon_is_refused_before_an_image_is_read(tmp_path):
    policy = Policy(methods=["feddm"], max_epsilon=60.0, min_local_steps=1)
    (tmp_path / "policy.toml").write_text(policy_toml(policy))
    kept = tmp_path / "ledgers"
    given = flat(private_tables("feddm", {"ledger": str(kept)})) | {"federation.policy": str(tmp_path / "policy.toml")}
    fedaf.run(settings=given, out=tmp_path / "first")
    assert not (tmp_path / "first" / "privacy").exists()
    with raises("FEDAF-QUORUM") as refusal:
        fedaf.run(settings=given, out=tmp_path / "second")
    assert "FEDAF-PRIVACY-BUDGET" in str(refusal.value)
    experiment = private_experiment("feddm")
    rounds = Rounds(experiment, Recorded(experiment, kept, untouchable, policy), RoundRules(quorum=0.5))
    with raises("FEDAF-QUORUM") as refusal:
        rounds.play()
    assert "FEDAF-PRIVACY-BUDGET" in str(refusal.value)
    assert [len(of_client) for of_client in entries(kept).values()] == [1, 1]


def test_one_client_without_budget_does_not_stop_the_others(tmp_path):
    policy = Policy(methods=["feddm"], max_epsilon=60.0, min_local_steps=1)
    experiment = private_experiment("feddm")
    played(experiment, tmp_path)
    for file in (tmp_path / "client-1").rglob("*"):
        if file.is_file():
            file.unlink()
    other = private_experiment("feddm")
    rounds = Rounds(other, Recorded(other, tmp_path, policy=policy), RoundRules(quorum=0.5))
    rounds.run = "another"
    report = rounds.play()
    assert report.accepted == ["client-1"]
    assert "FEDAF-PRIVACY-BUDGET" in report.failures["client-0"]


def test_a_deadline_that_ends_the_reading_of_the_data_costs_nothing(tmp_path):
    """Otherwise a slow client, or a server with a short deadline, would use up the budget for nothing."""
    experiment = private_experiment("feddm", {"networks": 50})
    for deadline in (0.02, 0.02, 60.0):
        rounds = Rounds(experiment, Recorded(experiment, tmp_path), RoundRules(deadline=deadline))
        if deadline > 1:
            rounds.play()
            continue
        with raises("FEDAF-QUORUM"):
            rounds.play()
        assert not any(entries(tmp_path).values())
    assert [len(of_client) for of_client in entries(tmp_path).values()] == [1, 1]


@pytest.mark.parametrize(
    ("bounds", "privacy", "code"),
    [
        ({"require_privacy": True}, {"epsilon": None}, "FEDAF-POLICY-PRIVACY"),
        ({"require_privacy": True}, {"simulate_seed": 1}, "FEDAF-POLICY-SIMULATED"),
        ({"max_epsilon": 49.0}, {}, "FEDAF-POLICY-EPSILON"),
    ],
)
def test_a_policy_refuses_too_little_privacy_before_an_image_is_read(bounds, privacy, code, tmp_path):
    policy = Policy(methods=["feddm"], min_local_steps=1, **bounds)
    tables = private_tables("feddm", privacy)
    if "epsilon" in privacy:
        tables["privacy"] = {}
    experiment = prepare(configuration.build(tables))
    rounds = Rounds(experiment, Recorded(experiment, tmp_path, untouchable, policy))
    with raises("FEDAF-QUORUM") as refusal:
        rounds.play()
    assert code in str(refusal.value)
    assert list(tmp_path.iterdir()) == []


UNCOVERED = [name for name in METHODS.names if name not in OPTIONS]


@pytest.mark.parametrize("method", [*UNCOVERED, "support.network.troubled:TroubledFedAF"])
def test_methods_whose_messages_no_release_covers_are_refused(method):
    with raises("FEDAF-PRIVACY-METHOD"):
        configuration.build({"data": {"name": "digits"}, "method": {"name": method}, "privacy": PRIVACY})


NEEDS_DATA = [
    *(
        (method, key, value)
        for method in OPTIONS
        for key, value in (
            ("init", "mean"),
            ("init", "clusters"),
            ("bn_mode", "batch"),
            ("shared_resampling", False),
            ("match_clusters", True),
            ("match_spread", 1.0),
        )
    ),
    *((method, key, True) for method in ("fedaf", "fedaf-plus") for key in ("cdc", "lgkm")),
    ("feddm", "match_logits", True),
]


@pytest.mark.parametrize(("method", "key", "value"), NEEDS_DATA)
def test_options_that_need_the_data_again_are_refused(method, key, value):
    with raises("FEDAF-PRIVACY-OPTION") as refusal:
        configuration.build(private_tables(method, **{key: value}))
    assert f"method.{key}" in str(refusal.value)


def test_a_share_of_the_budget_for_knowledge_allows_cdc_and_lgkm():
    built = configuration.build(private_tables("fedaf", KNOWLEDGE))
    assert built.method.cdc
    assert built.method.lgkm
    assert FEDAF["ipc"] == built.method.ipc


def seconds_of_a_step(method: str, ledgers: Path, *, private: bool) -> float:
    """The median time of a condensation step of the first round, without the release."""
    steps = 20
    tables = private_tables(method, local_steps=steps, ipc=10, real_batch=256)
    tables["model"] = {"width": 16}
    if not private:
        del tables["privacy"]
    experiment = prepare(configuration.build(tables))
    ticks: list[float] = []
    transport = local(experiment, ledgers=ledgers)
    server = experiment.method.initial(Key(0)).next_round(2)
    for phase in experiment.method.phases:
        requests = {
            client: Request("cost", 1, phase.name, 0, Key(1), phase.ask(server, client))
            for client in transport.clients()
        }
        found = transport.deliver(phase, requests, lambda who, done, total: ticks.append(time.perf_counter()))
        replies = {client: each.payload for client, each in found.items() if isinstance(each, Replied)}
        assert len(replies) == 2
        server = phase.aggregate(server, replies)
    last = ticks[-steps:]  # one for each step of the condensation
    return statistics.median(later - earlier for earlier, later in pairwise(last))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["feddm", "fedaf"])
def test_a_step_against_a_release_takes_no_longer_than_an_ordinary_one(method, tmp_path):
    """It reads no real images: about 0.15 of the time."""
    found = {
        kind: min(seconds_of_a_step(method, tmp_path / f"{kind}{n}", private=kind) for n in range(3))
        for kind in (False, True)
    }
    assert found[True] < found[False]
