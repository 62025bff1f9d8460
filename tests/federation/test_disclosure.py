"""What clients disclosed over a whole run, and what happens at the limits of their policy."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import fedaf
from fedaf import config as configuration
from fedaf.client.serving import Admission
from fedaf.client.state import ClientState
from fedaf.config.policies import default_policy
from fedaf.federation.rounds import RoundRules
from fedaf.federation.run_directory import read_metrics
from fedaf.federation.summary import summary
from fedaf.protocol import Client, Key, Payload, Silent, rounded_up
from fedaf.runs.experiment import prepare
from fedaf.transports.local import LocalTransport
from support.faults import FaultyTransport
from support.small import SMALL_FEDAF, Rounds, shards, small_experiment

IPC = 5
CONDENSING = ("fedaf", "fedaf-plus", "feddm")
OPTIONS = {**SMALL_FEDAF, "ipc": IPC, "min_samples": 10, "local_steps": 10, "server_steps": 8}
SETTINGS = {"model.width": 16, "run.device": "cpu", "federation.policy": "policy.toml", "partition.kind": "iid"}


def limited(method: str, *, max_staleness: int = 5, continue_images: bool = True, **limits) -> Rounds:
    """Rounds of clients whose policy has these limits."""
    init = "mean" if continue_images else "clusters"
    options = {**OPTIONS, "max_staleness": max_staleness, "continue_images": continue_images, "init": init}
    experiment = small_experiment(method, **options)
    admission = Admission(default_policy(**limits), experiment.method, method)
    transport = LocalTransport(shards(experiment), experiment.engine, admission)
    return Rounds(experiment, transport, RoundRules())


@pytest.fixture
def policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> None:
        Path("policy.toml").write_text(text)

    return write


@pytest.mark.parametrize("method", CONDENSING)
def test_a_client_at_its_limit_sends_nothing_new_and_the_run_goes_on(method, policy):
    """Four clients have every class (36 samples or so): 50 images a round, and the policy permits 100."""
    policy("max_images = 100\n")
    run = {"method": method, "dataset": "digits", "clients": 4, "rounds": 4}
    result = fedaf.run(**run, settings=SETTINGS, **OPTIONS, out="run").figures
    lines = read_metrics(Path("run"))
    counts = prepare(configuration.build(configuration.read_toml(Path("run/config.toml")))).counts
    clients = list(counts)
    for number, line in enumerate(lines, 1):
        assert line["failures"] == {}
        sent = {str(label): IPC for label in range(10)} if number <= 2 else {}
        assert {c: line["disclosure"][c]["images"] for c in clients} == dict.fromkeys(clients, sent)
        assert {line["disclosure"][c]["total"] for c in clients} == {min(number, 2) * 50}
    assert [line["upload_bytes"]["condense"]["client-0"] < 2500 for line in lines] == [False, False, True, True]
    assert all(line["losses"]["ce"] > 0 for line in lines)  # the server trains on the images of round 2
    assert result["disclosed"]["clients"] == {
        c: {
            "images": {str(label): 2 * IPC for label in range(10)},
            "total": 100,
            "all_runs": 100,
            "per_sample_at_most": rounded_up(2 * IPC / min(counts[c])),
        }
        for c in clients
    }
    assert result["disclosed"]["most_images"] == 100
    assert result["disclosed"]["per_sample_at_most"] == rounded_up(max(2 * IPC / min(counts[c]) for c in clients))
    assert json.loads(Path("run/result.json").read_text())["disclosed"] == result["disclosed"]


@pytest.mark.parametrize("continue_images", [True, False])
@pytest.mark.parametrize("method", CONDENSING)
def test_each_class_has_its_own_limit_and_its_last_images_stay_in_use(method, continue_images):
    """A class of N samples is sent in the first floor(ratio * N / ipc) rounds."""
    ratio, played = 0.15, 5
    rounds = limited(method, max_total_images_per_sample=ratio, max_staleness=1, continue_images=continue_images)
    counts = rounds.experiment.counts
    permitted = {
        client: {label: int(ratio * of[label] / IPC) for label in rounds.method.condensed_classes(of)}
        for client, of in counts.items()
    }
    assert {n for of in permitted.values() for n in of.values()} == {0, 1, 2, 3, 4}
    images: dict[tuple[str, int], torch.Tensor] = {}
    for number in range(1, played + 1):
        assert rounds.play().failures == {}
        for client, of in permitted.items():
            logged = rounds.server.log["disclosure"][client]
            assert logged["images"] == {str(label): IPC for label, most in of.items() if number <= most}
            sent = {label: IPC * min(number, most) for label, most in of.items()}
            assert logged["total"] == sum(sent.values())
            exact = max((n / counts[client][label] for label, n in sent.items()), default=0)
            assert exact <= ratio
            assert logged["per_sample_at_most"] == rounded_up(exact)
            record = rounds.server.memory.condensed[client].latest
            assert record.classes.tolist() == [label for label, most in of.items() if most]
            for label, in_use in zip(record.classes.tolist(), record.images, strict=True):
                before = images.setdefault((client, label), in_use)
                if number > of[label] or (number > 1 and not continue_images):
                    assert torch.equal(before, in_use) == (number > of[label])
                images[client, label] = in_use
    trained_on, labels = rounds.method.condensed_data(rounds.server)
    in_use = sum(min(most, rounds.method.options.replay) for of in permitted.values() for most in of.values())
    assert len(trained_on) == len(labels) == IPC * in_use


def test_classes_that_are_left_out_take_their_targets_and_kept_images_with_them():
    experiment = small_experiment("fedaf", **OPTIONS)
    shard, phase = shards(experiment)["client-2"], experiment.method.phase("condense")
    classes = experiment.method.condensed_classes(shard.counts)
    ask = Payload({"classes": torch.tensor(classes), "v": torch.randn(len(classes), 10)}, {"resample_key": 1})
    whole, _ = phase._job(ask, Client("client-2", shard, Key(1)))
    assert len(whole.classes) > 2
    kept = {"classes": torch.tensor(classes), "images": whole.images, "sources": torch.arange(len(classes))}
    allowance = dict.fromkeys(classes[1:], IPC) | {classes[2]: IPC - 1}
    job, state = phase._job(ask, Client("client-2", shard, Key(2), kept, allowance=allowance))
    rows = [1, *range(3, len(classes))]
    assert job.classes == [classes[row] for row in rows]
    assert torch.equal(job.targets, ask.tensors["v"][rows])
    assert torch.equal(job.images, whole.images[rows])
    assert state["sources"].tolist() == rows


def test_images_whose_reply_was_lost_are_disclosed_too():
    rounds = limited("feddm", max_total_images_per_sample=100)
    asked = {c: IPC * len(rounds.method.condensed_classes(of)) for c, of in rounds.experiment.counts.items()}
    lost = FaultyTransport(
        rounds.transport, lambda c, request, d: Silent() if (c, request.round) == ("client-0", 1) else d
    )
    inner, rounds.transport = rounds.transport, lost
    lines = []
    for _ in range(2):
        rounds.play()
        lines.append({**LINE, "disclosure": rounds.server.log["disclosure"]})
    assert "client-0" not in lines[0]["disclosure"]
    found = summary(lines)["disclosed"]["clients"]["client-0"]
    assert (found["total"], found["all_runs"]) == (asked["client-0"], 2 * asked["client-0"])
    kept = ClientState.from_tensors(inner.checkpoint()["client-0"])
    assert Counter(kept.images_sent).total() == 2 * asked["client-0"]


LINE = {"accuracy": None, "asked": [], "upload_bytes": {}, "download_bytes": {}, "seconds": {}}


def test_the_disclosure_of_a_run_is_the_sum_of_its_lines():
    lines = [
        {**LINE, "disclosure": {"a": {"images": {"10": 5, "2": 5}, "total": 30, "per_sample_at_most": 0.5}}},
        {
            **LINE,
            "disclosure": {
                "b": {"images": {}, "total": 0, "per_sample_at_most": 0.0},
                "a": {"images": {"10": 5}, "total": 35, "per_sample_at_most": 1.5},
            },
        },
        {**LINE, "disclosure": {"b": {"images": {"1": 5}, "total": 5, "per_sample_at_most": 0.25}}},
    ]
    assert summary(lines)["disclosed"] == {
        "most_images": 15,
        "per_sample_at_most": 1.5,
        "clients": {
            "a": {"images": {"2": 5, "10": 10}, "total": 15, "all_runs": 35, "per_sample_at_most": 1.5},
            "b": {"images": {"1": 5}, "total": 5, "all_runs": 5, "per_sample_at_most": 0.25},
        },
    }
    assert list(summary(lines)["disclosed"]["clients"]["a"]["images"]) == ["2", "10"]
    assert summary([LINE])["disclosed"] is None
