"""The references: pooled data are FedAvg with one client, and local training is FedAvg of each client alone."""

import json
from pathlib import Path

import pytest
import torch

import fedaf
from fedaf import config as configuration
from fedaf.config.policies import default_policy
from fedaf.deploy.init import trial_config
from fedaf.federation.run_directory import read_metrics
from fedaf.methods.registry import FEDERATED, METHODS, REFERENCES
from fedaf.protocol import Shard
from fedaf.runs.network import client_site, server_site
from fedaf.training.evaluate import predict
from fedaf.training.scores import percent
from fedaf.transports.flower.node import Node
from support.errors import raises
from support.small import final_tensors, small_experiment
from support.tiny import ENGINE, TASK, Play, make, shard

SHARDS = {"a": shard(9), "b": shard(12, (0, 1), seed=1), "c": shard(6, (2,), seed=2)}
TRAIN = {"local_epochs": 2, "momentum": 0.9, "batch_size": 4, "lr": 0.05}


def test_references_are_those_whose_class_says_so():
    assert tuple(name for name in METHODS if METHODS.find(name).reference) == REFERENCES
    assert set(FEDERATED) | set(REFERENCES) == set(METHODS)


def test_local_training_is_fedavg_of_each_client_alone():
    together = Play(make("local", **TRAIN), SHARDS)
    alone = {name: Play(make("fedavg", **TRAIN), {name: held}) for name, held in SHARDS.items()}
    start = together.server.model
    for _ in range(3):
        together.round()
        for running in alone.values():
            running.round()
    for name, running in alone.items():
        kept = together.kept(name)
        assert kept.keys() == running.server.model.keys()
        assert all(torch.equal(kept[n], running.server.model[n]) for n in kept)
    assert all(torch.equal(together.server.model[n], start[n]) for n in start)


def test_the_accuracy_of_local_training_is_the_mean_over_clients_of_their_own_models():
    running = Play(make("local", **TRAIN), SHARDS)
    for _ in range(2):
        running.round()
    own = {}
    for name, held in SHARDS.items():
        model = running.method.build_model(running.server.key)
        model.load_state_dict(running.kept(name))
        own[name] = percent(predict(model, held.test.images, TASK, ENGINE).argmax(1) == held.test.labels)
    log = running.server.log
    assert log["personal_accuracy"] == pytest.approx(own)
    assert log["accuracy"] == pytest.approx(sum(own.values()) / 3)
    assert log["personal_samples"] == {name: len(held.test) for name, held in SHARDS.items()}


def test_a_client_alone_without_test_data_costs_its_figure_only():
    bare = Shard(SHARDS["b"].images, SHARDS["b"].labels, SHARDS["b"].num_classes)
    running = Play(make("local", **TRAIN), {**SHARDS, "b": bare})
    report = running.round()
    assert list(report.failures) == ["b"]
    assert set(running.server.log["personal_accuracy"]) == {"a", "c"}


def a_run(out: Path, method: str, **more) -> Path:
    settings = {"model.width": 4, "run.device": "cpu", "run.threads": 1, **more.pop("settings", {})}
    fedaf.run(method=method, rounds=2, local_epochs=1, out=out, settings=settings, **more)
    return out


def result_of(run: Path) -> dict:
    found: dict = json.loads((run / "result.json").read_text())
    return found


def test_pooled_is_fedavg_with_one_client_and_keeps_the_split_of_the_comparison(tmp_path):
    pooled = a_run(tmp_path / "pooled", "pooled", clients=4)
    one = a_run(tmp_path / "one", "fedavg", clients=1, settings={"partition.kind": "iid"})
    split = a_run(tmp_path / "split", "fedavg", clients=4)
    left, right = final_tensors(pooled), final_tensors(one)
    assert left.keys() == right.keys()
    models = [name for name in left if name.startswith("model/")]
    assert len(models) > 5
    assert all(torch.equal(left[name], right[name]) for name in models)
    assert result_of(pooled)["curve"] == result_of(one)["curve"]
    assert (pooled / "partition.json").read_text() == (split / "partition.json").read_text()
    assert result_of(pooled)["clients"] == 4


def test_references_have_no_communication(tmp_path):
    for method in REFERENCES:
        run = a_run(tmp_path / method, method, clients=2)
        figures = result_of(run)
        assert figures["reference"] is True
        assert figures["upload_bytes_per_client_round"] is figures["download_bytes_per_client_round"] is None
        assert figures["evaluation_bytes_per_client_round"] == 0
        assert all(m["upload_bytes"] == m["download_bytes"] == {} for m in read_metrics(run))
        assert all("evaluation_bytes" not in m for m in read_metrics(run))
        assert len(figures["curve"]) == 2
    local = result_of(tmp_path / "local")
    assert local["last_accuracy"] == pytest.approx(local["personal"]["last_accuracy"])
    assert result_of(a_run(tmp_path / "fedavg", "fedavg", clients=2))["reference"] is False


@pytest.mark.parametrize("method", REFERENCES)
def test_a_reference_that_was_stopped_ends_with_the_same_numbers(method, tmp_path):
    run = a_run(tmp_path / "run", method, clients=2, settings={"run.keep_checkpoints": 0})
    whole, curve = final_tensors(run), result_of(run)["curve"]
    (run / "LATEST").write_text("round-1")
    (run / "result.json").unlink()
    fedaf.resume(run)
    again = final_tensors(run)
    assert result_of(run)["curve"] == curve
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_pooled_data_are_each_sample_once():
    experiment = small_experiment("pooled")
    (client,) = experiment.shards
    assert torch.equal(experiment.shards[client].labels, experiment.dataset.train.labels)
    assert torch.equal(experiment.shards[client].images, experiment.dataset.train.images)
    assert len(experiment.counts) == 4


@pytest.mark.parametrize("method", REFERENCES)
def test_no_site_of_a_network_runs_a_reference_even_if_a_policy_names_it(method, tmp_path):
    config = configuration.build({"data": {"name": "digits"}, "method": {"name": method}})
    with raises("FEDAF-METHOD-REFERENCE"):
        server_site(config)
    with raises("FEDAF-METHOD-REFERENCE"):
        trial_config({"method": {"name": method}})
    assert method not in default_policy().methods
    node = {"client-id": "a", "data": "partition:0", "state-dir": str(tmp_path)}
    with raises("FEDAF-POLICY-METHOD"):
        client_site(Node.read(node), config.to_toml())
    policy = tmp_path / "policy.toml"
    policy.write_text(f'methods = ["{method}"]\n')
    with raises("FEDAF-METHOD-REFERENCE"):
        client_site(Node.read({**node, "policy": str(policy)}), config.to_toml())


def test_in_one_process_a_policy_must_name_a_reference(tmp_path):
    given = {"method": "pooled", "rounds": 1, "local_epochs": 1, "settings": {"model.width": 4, "run.device": "cpu"}}
    with raises("FEDAF-POLICY-METHOD"):
        fedaf.run(**given, policy="default")
    (tmp_path / "policy.toml").write_text('methods = ["pooled"]\n')
    assert fedaf.run(**given, policy=str(tmp_path / "policy.toml")).figures["method"] == "pooled"


@pytest.mark.parametrize("method", REFERENCES)
def test_every_client_takes_part_in_every_round_of_a_reference(method, tmp_path):
    run = a_run(tmp_path / "run", method, clients=4, settings={"federation.participation": 0.5})
    asked = [line["asked"] for line in read_metrics(run)]
    assert {len(each) for each in asked} == {1 if method == "pooled" else 4}


def test_the_untrained_model_of_local_training_is_not_kept_as_a_result(tmp_path):
    run = a_run(tmp_path / "run", "local", clients=2)
    assert [path.name for path in (run / "model").iterdir()] == ["model.json"]
    with raises("FEDAF-MODEL-NOT-GLOBAL"):
        fedaf.load(run)
    assert fedaf.load(run, client="client-1").client == "client-1"


def test_clients_of_local_training_are_compared_on_their_own_label_distributions(tmp_path):
    last = read_metrics(a_run(tmp_path / "run", "local", clients=2))[-1]
    assert last["accuracy_by_client"] == last["personal_own_accuracy"]
    assert last["accuracy"] == pytest.approx(sum(last["personal_accuracy"].values()) / 2)
