"""The sites of a federation over a network: what a server and a client make of the run's configuration."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedaf import config as configuration
from fedaf.client.evaluation import Evaluate, phase_named
from fedaf.client.serving import Admission
from fedaf.client.state import ClientState
from fedaf.engine import EagerEngine
from fedaf.federation.events import EventReader
from fedaf.federation.run_directory import read_metrics
from fedaf.protocol import Client, Key, Method, Payload, Policy, Refused, Shard, UserError
from fedaf.runs import assembly
from fedaf.runs.evaluation import evaluate
from fedaf.runs.experiment import phases_of, prepare
from fedaf.runs.network import client_site, play, read_config, server_site
from fedaf.runs.trained import load
from fedaf.training.evaluate import predict
from fedaf.training.scores import score_logits
from fedaf.transports.flower.node import Node
from fedaf.transports.local import LocalTransport
from support.datafiles import pixels, write_tree
from support.errors import raises
from support.faults import Wire

OWN = {"name": "none", "shape": [1, 8, 12], "classes": ["cat", "dog", "owl"]}


def text(data: dict[str, Any] | None = None, method: str = "fedavg", **tables: Any) -> str:
    given = {
        "data": data or OWN,
        "run": {"device": "cpu", "rounds": 2},
        "model": {"width": 8, "depth": 2},
        "method": {"name": method, **({"local_epochs": 1} if method != "fedaf" else {})},
        **tables,
    }
    return configuration.build(given).to_toml()


def node(data: str, folder: Path, **config: Any) -> Node:
    return Node.read({"client-id": "a", "data": data, "state-dir": str(folder), **config})


def write_npz(path: Path, labels: list[int], *, shape: tuple[int, ...] = (8, 12, 1), **more: np.ndarray) -> Path:
    arrays = {f"x_{part}": pixels(len(labels), *shape) for part in ("train", "test")}
    np.savez(path, **arrays, y_train=np.array(labels), y_test=np.array(labels), **more)
    return path


def test_a_server_without_data_knows_what_is_to_be_learned():
    site = server_site(read_config(text()))
    assert site.test is None
    task = site.method.task
    assert (task.image_shape, task.num_classes, task.mean, task.std) == ((1, 8, 12), 3, (0.5,), (0.25,))


def test_a_server_of_a_catalog_set_has_its_test_split():
    site = server_site(read_config(text({"name": "digits"})))
    assert site.test is not None
    assert len(site.test) == 359
    assert site.config.partition.kind == "dirichlet"


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ({"name": "none"}, "FEDAF-DATA-SHAPE", ("data.name", "'none'", "data.shape", "data.classes")),
        ({"name": "digits", "shape": [1, 8, 8]}, "FEDAF-DATA-SHAPE", ("data.shape",)),
        ({**OWN, "classes": ["cat", "cat"]}, "FEDAF-DATA-CLASSES", ("data.classes",)),
        ({**OWN, "validation": 10}, "FEDAF-DATA-VALIDATION", ("data.validation",)),
        ({**OWN, "selection": 10}, "FEDAF-DATA-SELECTION", ("data.selection",)),
    ],
)
def test_a_configuration_that_does_not_say_what_is_to_be_learned_is_refused(data, code, words):
    with raises(code) as caught:
        server_site(read_config(text(data)))
    assert all(word in str(caught.value) for word in words)


def test_in_one_process_there_must_be_data():
    with raises("FEDAF-DATA-NONE"):
        prepare(read_config(text()))


@pytest.mark.parametrize("given", ["", "[data"])
def test_a_run_config_without_a_configuration_is_refused(given):
    with raises("FEDAF-RUN-CONFIG"):
        read_config(given)


def test_a_folder_may_lack_classes_and_its_images_are_made_to_the_shape_of_the_federation(tmp_path):
    write_tree(tmp_path / "images", {"owl": 10}, shape=(20, 20, 3))
    site = client_site(node(f"folder:{tmp_path / 'images'}", tmp_path), text())
    assert site.shard.images.shape == (8, 1, 8, 12)
    assert site.shard.counts == [0, 0, 8]
    assert site.shard.test is not None
    assert site.shard.test.labels.tolist() == [2, 2]
    assert set(site.seconds) == {"data", "model"}


def test_a_class_the_federation_does_not_know_is_refused_with_its_name(tmp_path):
    write_tree(tmp_path / "images", {"owl": 10, "eel": 10})
    with pytest.raises(UserError, match="'eel'"):
        client_site(node(f"folder:{tmp_path / 'images'}", tmp_path), text())


def test_an_npz_may_lack_classes_too(tmp_path):
    site = client_site(node(f"npz:{write_npz(tmp_path / 'a.npz', [2, 2, 2])}", tmp_path), text())
    assert site.shard.counts == [0, 0, 3]


@pytest.mark.parametrize(
    ("labels", "more", "sentence"),
    [
        ([0, 1], {"shape": (8, 8, 1)}, r"\(1, 8, 8\).*\(1, 8, 12\)"),
        ([0, 3], {}, "label 3"),
        ([0, 1], {"classes": np.array(["dog", "cat", "owl"])}, "dog, cat, owl.*cat, dog, owl"),
        ([0, 1], {"classes": np.array(["cat", "dog"])}, "2 classes.* 3"),
    ],
)
def test_an_npz_must_be_as_the_run_says(labels, more, sentence, tmp_path):
    path = write_npz(tmp_path / "a.npz", labels, **more)
    with pytest.raises(UserError, match=sentence):
        client_site(node(f"npz:{path}", tmp_path), text())


def test_a_trial_client_has_its_part_of_the_runs_own_split(tmp_path):
    given = text({"name": "digits"}, partition={"alpha": 0.5, "clients": 3})
    experiment = prepare(read_config(given))
    mine = client_site(node("partition:1", tmp_path), given).shard
    expected = experiment.partition.shards(experiment.dataset)["client-1"]
    assert torch.equal(mine.images, expected.images)
    with raises("FEDAF-NODE-DATA") as caught:
        client_site(node("partition:3", tmp_path), given)
    assert "partition:3" in str(caught.value)
    assert "partition:2" in str(caught.value)
    with raises("FEDAF-NODE-DATA"):
        client_site(node("partition:0", tmp_path), text())


def test_held_out_images_are_the_servers_test_set_and_no_trial_client_trains_on_them(tmp_path):
    given = text({"name": "digits", "validation": 300}, partition={"alpha": 0.5, "clients": 2})
    test = server_site(read_config(given)).test
    assert test is not None
    assert len(test) == 300
    experiment = prepare(read_config(given))
    assert torch.equal(test.images, experiment.dataset.test.images)
    mine = client_site(node("partition:1", tmp_path), given).shard
    assert torch.equal(mine.images, experiment.partition.shards(experiment.dataset)["client-1"].images)


def test_images_to_choose_by_are_on_the_server_and_no_trial_client_trains_on_them(tmp_path):
    given = text({"name": "digits", "selection": 300}, partition={"alpha": 0.5, "clients": 2})
    selection, experiment = server_site(read_config(given)).selection, prepare(read_config(given))
    assert torch.equal(selection.images, experiment.dataset.selection.images)
    mine = client_site(node("partition:1", tmp_path), given).shard
    assert torch.equal(mine.images, experiment.partition.shards(experiment.dataset)["client-1"].images)
    assert sum(map(sum, experiment.counts.values())) == 1438 - 300


def test_the_server_keeps_the_model_for_use_and_personal_ones_stay_with_their_clients(connect, tmp_path):
    play(text(method="fedbn"), str(tmp_path / "run"), lambda **terms: Wire(connect(**terms)))
    model = load(tmp_path / "run")
    assert (model.classes, model.round) == (("cat", "dog", "owl"), 2)
    images = pixels(4, 8, 12)
    assert set(model.predict(images)) <= {"cat", "dog", "owl"}
    with raises("FEDAF-MODEL-NOT-PERSONAL") as refused:
        load(tmp_path / "run", client="a")
    assert "over a network" in str(refused.value)
    with raises("FEDAF-EVALUATE-NO-DATA"):
        evaluate(model, tmp_path / "run")


def test_the_engine_and_the_precision_of_the_run_hold_at_every_site(tmp_path):
    exact = {"device": "cpu", "engine": "eager", "precision": "fp32"}
    given = text({"name": "digits"}, run=exact, partition={"clients": 2, "alpha": 0.5})
    for site in (server_site(read_config(given)), client_site(node("partition:0", tmp_path), given)):
        assert (site.engine.name, site.engine.precision) == ("eager", "fp32")
    for asked, words in (({"engine": "compiled"}, "cuda-graphs"), ({"precision": "bf16"}, "bf16")):
        given = text({"name": "digits"}, run={"device": "cpu", **asked})
        with pytest.raises(UserError, match=words):
            server_site(read_config(given))
        with pytest.raises(UserError, match=words):
            client_site(node("partition:0", tmp_path), given)


@pytest.mark.parametrize("table", ['[run]\nengine = "evil:Engine"', '[model]\nname = "evil:make"'])
def test_a_client_loads_no_engine_or_model_that_only_the_server_names(table, tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Refused, match="evil"):
        client_site(node("partition:0", tmp_path), table)


def test_on_a_node_its_own_device_and_threads_win(tmp_path):
    before = torch.get_num_threads()
    given = text({"name": "digits"}, run={"device": "cuda:7", "engine": "compiled", "precision": "bf16", "threads": 2})
    try:
        site = client_site(node("partition:0", tmp_path, device="cpu", threads=1), given)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert (site.engine.device.type, site.engine.name, site.engine.precision) == ("cpu", "eager", "fp32")


def test_a_nodes_process_compiles_only_where_it_is_told_to():
    config = read_config(text())
    assert type(assembly.engine_for(config, short_lived=True)) is EagerEngine


def evaluation(method: Method, test: Shard | None, model: dict[str, torch.Tensor]) -> Payload:
    shard = Shard(torch.zeros(1, 1, 8, 12, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64), 3, test)
    engine = EagerEngine(torch.device("cpu"))
    reply = Evaluate(method).work_one(Payload(model), Client("a", shard, Key(1)), engine).reply
    Evaluate(method).schema(Payload(model)).validate(reply)
    return reply


def test_accuracy_at_the_clients_counts_every_test_sample_once():
    """A model that always says 1, on 1 of 4 and 6 of 6 right, and a client without test data."""
    method = server_site(read_config(text())).method
    server = method.initial(Key(0))
    model = {name: torch.zeros_like(t) for name, t in server.model.items()}
    bias = next(name for name, t in reversed(model.items()) if t.shape == (3,))
    model[bias] = torch.tensor([0.0, 1.0, 0.0])

    def held(labels: list[int]) -> Shard:
        return Shard(torch.zeros(len(labels), 1, 8, 12, dtype=torch.uint8), torch.tensor(labels), 3)

    replies = {
        "a": evaluation(method, held([0, 1, 2, 2]), model),
        "b": evaluation(method, held([1] * 6), model),
        "c": evaluation(method, None, model),
    }
    log = Evaluate(method).aggregate(server, replies).log
    assert log["accuracy"] == pytest.approx(70)
    assert log["accuracy_by_client"] == {"a": 25.0, "b": 100.0}
    assert Evaluate(method).aggregate(server, {"c": replies["c"]}).log == {}


@pytest.mark.parametrize(("data", "method", "phases"), [(OWN, "fedaf", 3), (OWN, "fedbn", 2), (None, "fedaf", 2)])
def test_a_round_ends_with_an_evaluation_where_the_server_has_no_data_or_the_method_has_one(data, method, phases):
    assert phases_of(read_config(text(data or {"name": "digits"}, method=method))) == phases


def test_a_method_keeps_its_own_evaluation():
    own, none = (server_site(read_config(text(method=name))).method for name in ("fedbn", "fedavg"))
    assert not isinstance(phase_named(own, "evaluate"), Evaluate)
    assert isinstance(phase_named(none, "evaluate"), Evaluate)
    with raises("FEDAF-REQUEST-PHASE"):
        phase_named(none, "other")


def test_an_evaluation_takes_no_images_so_there_is_no_limit_on_them():
    method = server_site(read_config(text(method="fedaf"))).method
    labels = torch.zeros(200, dtype=torch.int64)
    shard = Shard(torch.zeros(200, 1, 8, 12, dtype=torch.uint8), labels, 3)
    admission = Admission(Policy(methods=["fedaf"], max_images=50), method, "fedaf")
    assert admission.admit(method.phases[0], shard, ClientState()) == {0: 50}
    sent = ClientState(images_sent={0: 1})
    assert admission.admit(method.phases[0], shard, sent) == {}
    assert admission.admit(Evaluate(method), shard, sent) is None


@pytest.fixture
def connect():
    """Clients in this process, in place of those on a network."""

    def connect(**terms: Any) -> LocalTransport:
        assert terms == {"min_clients": 2, "wait": 600.0}
        shards = {}
        for number, name in enumerate(("a", "b")):
            images = torch.from_numpy(pixels(12, 1, 8, 12, seed=number))
            test = Shard(images, torch.arange(12) % 3, 3) if name == "b" else None
            shards[name] = Shard(images, torch.arange(12) % 3, 3, test)
        return LocalTransport(shards, EagerEngine(torch.device("cpu")))

    return connect


def test_without_test_data_of_the_server_fedbn_is_judged_by_its_clients(tmp_path):
    def connect(**terms: Any) -> LocalTransport:
        shards = {}
        for number, (name, count) in enumerate((("a", 4), ("b", 12))):
            images = torch.from_numpy(pixels(12, 1, 8, 12, seed=number))
            labels = torch.arange(12) % 3
            shards[name] = Shard(images, labels, 3, Shard(images[:count], labels[:count], 3))
        return LocalTransport(shards, EagerEngine(torch.device("cpu")))

    play(text(method="fedbn"), str(tmp_path / "run"), connect)
    for m in read_metrics(tmp_path / "run"):
        assert m["personal_samples"] == {"a": 4, "b": 12}
        own = m["personal_accuracy"]
        assert m["accuracy"] == pytest.approx((4 * own["a"] + 12 * own["b"]) / 16)
        assert m["client_spread"]["mean"] == pytest.approx((own["a"] + own["b"]) / 2)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["tested_on"] == "test data of the clients"


def test_without_test_data_of_the_server_there_are_the_metrics_that_clients_can_pool(tmp_path):
    shards = {}
    for number, (name, count) in enumerate((("a", 4), ("b", 12))):
        images, labels = torch.from_numpy(pixels(12, 1, 8, 12, seed=number)), torch.arange(12) % 3
        shards[name] = Shard(images, labels, 3, Shard(images[:count], labels[:count], 3))
    transport = LocalTransport(shards, EagerEngine(torch.device("cpu")))
    play(text(), str(tmp_path / "run"), lambda **terms: transport)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    site = server_site(read_config(text()))
    model = site.method.build_model(Key(0))
    model.load_state_dict(load_file(tmp_path / "run" / "round-2" / "model.safetensors"))
    tests = [shard.test for shard in shards.values()]
    images, labels = torch.cat([test.images for test in tests]), torch.cat([test.labels for test in tests])
    whole = score_logits(predict(model, images, site.method.task, site.engine), labels)
    last = result["metrics"]["last"]
    assert last.keys() == {"round", "accuracy", "loss", "accuracy_by_client", "client_spread"}
    assert last["accuracy"] == pytest.approx(whole.accuracy)
    assert last["loss"] == pytest.approx(whole.loss)
    assert last["client_spread"]["lowest"] == min(last["accuracy_by_client"].values())
    assert result["classes"] == list(OWN["classes"])
    assert result["left_out"] is None


def test_a_run_goes_on_where_it_was_stopped_and_says_when_it_is_finished(connect, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    out = tmp_path / "run"
    play(text(), str(out), connect)
    metrics = read_metrics(out)
    assert [m["accuracy"] for m in metrics] == [m["accuracy_by_client"]["b"] for m in metrics]
    assert (out / "result.json").is_file()

    (out / "LATEST").write_text("round-1")
    written = out / "config.toml"  # version 0.1.0 wrote lists on one line
    written.write_text(
        re.sub(r"\[\n\s+(.*?),\n\]", lambda found: f"[{found[1]}]", written.read_text(), flags=re.DOTALL)
    )
    play(text(), str(out), connect)
    assert f"{out} after round 1" in caplog.text
    again = read_metrics(out)
    assert [m["accuracy"] for m in again] == [m["accuracy"] for m in metrics]

    play(text(), str(out), connect)
    assert f"{out} is finished" in caplog.text
    play(text(run={"device": "cpu", "rounds": len(metrics), "track": ["support.observers:Diary"]}), str(out), connect)
    assert (out / "diary.txt").read_text().endswith(f"{len(metrics)} rounds done, seed 0\nfinished\n")
    with raises("FEDAF-RUN-OTHER-SETTINGS"):
        play(text(model={"width": 4}), str(out), connect)
    with raises("FEDAF-RUN-NO-DIRECTORY"):
        play(text(), "", connect)


def test_a_run_over_a_network_writes_events_and_also_says_why_it_could_not_start(connect, tmp_path):
    out = tmp_path / "run"
    missing = {**OWN, "name": f"npz:{tmp_path / 'missing.npz'}"}
    with pytest.raises(UserError) as stopped:
        play(text(missing), str(out), connect)
    [failed] = EventReader(out).read()
    assert (failed["event"], failed["code"]) == ("failed", stopped.value.code)
    assert "missing.npz" in failed["message"]

    play(text(), str(out), connect)
    events = EventReader(out).read()[1:]
    assert [event["event"] for event in events if event["event"] != "phase_started"] == [
        *("described", "started"),
        *["round_started", "round_ended"] * 2,
        "ended",
    ]
    assert [event["name"] for event in events if event["event"] == "phase_started"] == ["fit", "server", "evaluate"] * 2
    assert events[1]["phases"] == 2


@pytest.mark.parametrize(
    ("table", "values"),
    [("data", {"name": "evil:SPEC"}), ("partition", {"kind": "evil:KIND"}), ("training", {"augment": ["evil:AUG"]})],
)
def test_a_server_cannot_make_a_client_load_code_by_the_name_of_data_or_augmentation(
    tmp_path, monkeypatch, table, values
):
    (tmp_path / "evil.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    with pytest.raises(Refused, match="evil"):
        client_site(node("npz:x.npz", tmp_path), config)
