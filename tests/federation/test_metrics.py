"""The metrics of a run: in every line, for the last and the best round, as curves, and after a resume."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fedaf
from fedaf.federation.metrics import METRICS, Spread, curve_of, value_of
from fedaf.federation.run_directory import read_metrics
from fedaf.federation.summary import summary
from fedaf.reporting.figures import read_result
from fedaf.training.evaluate import predict
from fedaf.training.scores import score_logits
from support import TESTS
from support.small import SMALL, SMALL_FEDAF, small_experiment

NUMBERS = ("balanced_accuracy", "macro_auc", "loss", "worst_client", "best_client", "client_mean", "client_std")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("run") / "fedavg"
    fedaf.run(method="fedavg", local_epochs=1, out=out, **SMALL)
    return out


def test_the_last_line_is_what_the_model_scores_on_the_test_set(finished):
    line, experiment = read_metrics(finished)[-1], small_experiment("fedavg")
    model, test = fedaf.resume(finished).model, experiment.dataset.test
    found = score_logits(predict(model, test.images, experiment.task, experiment.engine), test.labels)
    assert line["accuracy"] == found.accuracy
    for name in ("balanced_accuracy", "macro_auc", "loss", "confusion"):
        assert line[name] == getattr(found, name), name
    assert line["accuracy_by_class"] == list(found.by_class)
    assert np.sum(line["confusion"]) == len(test)
    for client, counts in experiment.counts.items():
        shares = np.array(counts) / sum(counts)
        assert line["accuracy_by_client"][client] == pytest.approx(float(shares @ found.by_class))
    accuracies = list(line["accuracy_by_client"].values())
    assert line["client_spread"] == {
        "mean": pytest.approx(np.mean(accuracies)),
        "std": pytest.approx(np.std(accuracies)),
        "lowest": min(accuracies),
        "highest": max(accuracies),
    }


def test_a_result_has_the_last_and_the_best_round_and_every_curve(finished):
    result, lines = read_result(finished), read_metrics(finished)
    best = max(lines, key=lambda line: line["accuracy"])
    for name, line in (("last", lines[-1]), ("best", best)):
        found = result["metrics"][name]
        assert found["round"] == line["round"]
        assert {key: line[key] for key in found} == found
        assert found.keys() >= {"confusion", "accuracy_by_class", "accuracy_by_client", "client_spread"}
    assert result["curves"].keys() == {"accuracy", *NUMBERS}
    for name in NUMBERS:
        assert curve_of(result, name) == [METRICS[name].read(line) for line in lines]
        assert value_of(result, name) == METRICS[name].read(lines[-1])
        assert value_of(result, name, best=True) == METRICS[name].read(best)
    assert curve_of(result, "accuracy") == result["curve"] == result["curves"]["accuracy"]
    assert curve_of(result, "personal_accuracy") == [None] * 3
    assert result["classes"] == [str(digit) for digit in range(10)]
    assert result["left_out"] is None


def test_the_spread_over_clients_is_that_of_the_whole_population():
    assert Spread.of({"a": 50.0, "b": 70.0, "c": 90.0}) == Spread(70, math.sqrt(800 / 3), 50, 90)
    assert Spread.of({"a": 50.0}) == Spread(50, 0, 50, 50)
    assert Spread.of({}) is None


def test_a_matrix_is_a_line_a_row(finished):
    lines = (finished / "result.json").read_text().splitlines()
    row = json.dumps(read_result(finished)["metrics"]["last"]["confusion"][0])
    assert sum(line.strip() == f"{row}," for line in lines) >= 1
    assert len(lines) < 150


def test_a_resumed_run_has_the_same_metrics(finished, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(finished, again)
    (again / "result.json").unlink()
    (again / "LATEST").write_text("round-2")
    resumed = fedaf.resume(again).figures
    result = read_result(finished)
    assert (resumed["metrics"], resumed["curves"]) == (result["metrics"], result["curves"])


def test_rounds_of_an_older_version_leave_gaps(tmp_path):
    shutil.copytree(TESTS / "support" / "old_runs" / "fedbn", tmp_path / "run")
    result = fedaf.resume(tmp_path / "run").figures
    assert [value is None for value in result["curves"]["loss"]] == [True, True, False]
    assert [value is None for value in result["curves"]["personal_own_accuracy"]] == [True, True, False]
    assert None not in result["curves"]["personal_accuracy"]
    assert result["metrics"]["last"]["round"] == 3


def test_personal_models_on_both_distributions():
    line = {"accuracy": 1.0, "asked": [], "upload_bytes": {}, "download_bytes": {}, "seconds": {}}
    first = {"personal_accuracy": {"a": 50.0, "b": 70.0}, "personal_own_accuracy": {"a": 90.0}}
    second = {"personal_accuracy": {"a": 40.0, "b": 60.0}, "personal_own_accuracy": {"a": 80.0, "b": 100.0}}
    assert summary([{**line, "round": 1, **first}, {**line, "round": 2, **second}])["personal"] == {
        "best_accuracy": 60,
        "best_by_client": first["personal_accuracy"],
        "last_accuracy": 50,
        "best_own_accuracy": 90,
        "best_own_by_client": {"a": 90.0},
        "last_own_accuracy": 90,
    }
    old = summary([{**line, "round": 1, "personal_accuracy": {"a": 50.0}}])["personal"]
    assert (old["best_accuracy"], old["best_own_accuracy"], old["best_own_by_client"]) == (50, None, None)


def test_one_client_per_domain_has_the_accuracy_of_its_domain(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 8, 8), dtype=np.uint8)
    labels, domains = np.arange(60) % 2, np.arange(60) // 20
    split = {
        f"{name}_{part}": value
        for part in ("train", "test")
        for name, value in (("x", images), ("y", labels), ("domain", domains))
    }
    names = np.array(["oil & ink", "photo", "sketch"])
    np.savez(tmp_path / "d.npz", domains=names, classes=np.array(["a", "b"]), **split)
    small = {"model.width": 8, "run.device": "cpu"}
    result = fedaf.run(
        dataset=f"npz:{tmp_path / 'd.npz'}", method="fedbn", local_epochs=1, rounds=1, settings=small
    ).figures
    last = result["metrics"]["last"]
    assert last["accuracy_by_client"] == {
        "oil---ink": last["accuracy_by_domain"]["oil & ink"],
        "photo": last["accuracy_by_domain"]["photo"],
        "sketch": last["accuracy_by_domain"]["sketch"],
    }
    assert last["client_spread"]["mean"] == pytest.approx(last["accuracy"])
    # train and test data are the same, so each client's label distribution is that of its test data
    assert last["personal_own_accuracy"] == pytest.approx(last["personal_accuracy"])
    assert result["classes"] == ["a", "b"]


def test_the_test_loss_wins_over_an_entry_of_a_methods_log_with_its_name(monkeypatch):
    experiment = small_experiment("fedavg", local_epochs=1)
    method = type(experiment.method)
    plain = method.finish
    monkeypatch.setattr(method, "finish", lambda self, server, engine: plain(self, server, engine).with_log(loss=-7.0))
    result = fedaf.run(method="fedavg", local_epochs=1, **{**SMALL, "rounds": 1})
    assert result.figures["metrics"]["last"]["loss"] > 0


def test_condensing_and_averaging_runs_have_the_same_metrics():
    torch.manual_seed(0)
    result = fedaf.run(method="fedaf", **{**SMALL, "rounds": 1}, **SMALL_FEDAF).figures
    assert result["curves"].keys() == {"accuracy", *NUMBERS}
    assert result["left_out"]["samples"] > 0
