"""Runs that differ in engine, precision or version of the method are different runs."""

import json
import shutil

import pytest

import fedaf
from fedaf.federation.observer import Observer, StopRun
from fedaf.methods.fedavg import FedAvg
from fedaf.reproduce.archive import Archive, Conditions, publish
from fedaf.reproduce.cells import config_of
from fedaf.reproduce.report import render
from fedaf.reproduce.running import Reproduction
from support.digit_cells import FEDAF, FEDAVG, FEDAVG_1, TABLE, places, reproduced
from support.errors import raises


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conditions")
    reproduced([FEDAVG, FEDAVG_1], folder)
    return folder


@pytest.fixture
def results(finished, tmp_path):
    shutil.copytree(finished / "results", tmp_path / "results")
    return tmp_path / "results"


def change(results, cell, **figures):
    file = results / cell.directory / "result.json"
    kept = {**json.loads(file.read_text()), **figures}
    file.write_text(json.dumps({name: value for name, value in kept.items() if value is not None}))


def test_a_run_records_what_changes_its_numbers_and_the_commit(results):
    figures = json.loads((results / FEDAVG.directory / "result.json").read_text())
    assert (figures["engine"], figures["precision"], figures["method_version"]) == ("eager", "fp32", 1)
    assert len(figures["commit"].rstrip("+")) == 40


def test_runs_under_different_conditions_are_never_averaged(results, tmp_path):
    change(results, FEDAVG_1, precision="bf16", curve=[0.0, 0.0, 0.0], best_accuracy=0.0)
    render(results, tmp_path / "docs", made=[TABLE])
    rows = [line for line in (tmp_path / "docs" / "RESULTS.md").read_text().splitlines() if line.startswith("| FedAvg")]
    assert [row.split(" | ")[0] for row in rows] == [
        "| FedAvg (eager, bf16, version 1)",
        "| FedAvg (eager, fp32, version 1)",
    ]
    assert rows[0].split(" | ")[2:4] == ["0.00", "1"]
    assert "±" not in rows[1].split(" | ")[2]


def test_a_run_of_an_older_version_is_open_again_and_keeps_its_place(results, tmp_path, monkeypatch):
    monkeypatch.setattr(FedAvg, "version", 2)
    assert Reproduction([FEDAVG], places(tmp_path)).open == [FEDAVG]
    tally, _ = reproduced([FEDAVG], tmp_path)
    assert tally.finished == [FEDAVG]
    found = {run.path.name: run.conditions.method_version for run in Archive(results).all_of(FEDAVG)}
    assert found == {"fedavg-seed0": 1, "fedavg-seed0-2": 2}


def test_the_report_names_the_earlier_version_of_a_row(results, tmp_path, monkeypatch):
    def labels(folder) -> list[str]:
        render(results, folder, made=[TABLE])
        lines = (folder / "RESULTS.md").read_text().splitlines()
        assert "- FedAvg, version 1: an earlier version" in lines
        return [line.split(" | ")[0] for line in lines if line.startswith("| FedAvg")]

    monkeypatch.setattr(FedAvg, "version", 2)
    assert labels(tmp_path / "before") == ["| FedAvg (version 1)"]
    reproduced([FEDAVG], tmp_path)
    assert labels(tmp_path / "after") == ["| FedAvg", "| FedAvg (version 1)"]


def test_the_report_says_what_changed_after_version_1_of_fedaf(results, tmp_path):
    shutil.copytree(results / FEDAVG.directory, results / FEDAF.directory)
    (results / FEDAF.directory / "config.toml").write_text(config_of(FEDAF).to_toml())
    change(results, FEDAF, method="fedaf", method_version=1)
    render(results, tmp_path / "docs", made=[TABLE])
    text = (tmp_path / "docs" / "RESULTS.md").read_text()
    assert "FedAF, version 1: before the BatchNorm statistics of the first model were estimated" in text
    assert "| FedAF (version 1) |" in text


def test_an_explicit_precision_wants_runs_in_that_precision(results):
    archive = Archive(results)
    assert archive.find(FEDAVG) is archive.find(FEDAVG, engine="eager", precision="fp32")
    assert archive.find(FEDAVG, precision="bf16") is None
    assert archive.find(FEDAVG, engine="cuda-graphs") is None


def test_a_run_with_the_old_name_of_an_engine_is_one_of_the_new_name(results):
    change(results, FEDAVG, engine="compiled", method_version=None)
    assert [run.conditions for run in Archive(results).all_of(FEDAVG)] == [Conditions("cuda-graphs", "fp32", 1)]


def test_a_run_that_does_not_record_its_conditions_does_not_count(results):
    change(results, FEDAVG, engine=None, precision=None)
    archive = Archive(results)
    assert archive.find(FEDAVG) is None
    assert [(run.path.name, why) for run, why in archive.others([FEDAVG, FEDAVG_1])] == [
        ("fedavg-seed0", "its engine and precision are not recorded")
    ]


def test_the_same_run_published_again_replaces_itself(results, finished, tmp_path):
    work = tmp_path / "work"
    shutil.copytree(finished / "results" / FEDAVG.directory, work)
    counts = json.loads((work / "counts.json").read_text())
    (work / "partition.json").write_text(json.dumps({"counts": counts}))
    assert publish(work, results, FEDAVG) == results / FEDAVG.directory


def test_the_archive_keeps_the_confusion_matrices_of_the_last_and_the_best_round_only(finished):
    run = finished / "results" / FEDAVG.directory
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert all("confusion" not in line and line["loss"] > 0 for line in lines)
    found = json.loads((run / "result.json").read_text())["metrics"]
    assert len(found["last"]["confusion"]) == len(found["best"]["confusion"]) == 10


def test_a_run_that_another_version_began_is_not_continued(tmp_path, monkeypatch):
    class StopAfterOne(Observer):
        def round_ended(self, metrics) -> None:
            raise StopRun

    tally, _ = reproduced([FEDAVG], tmp_path, observer=StopAfterOne())
    assert list(tally.failed) == [FEDAVG]
    monkeypatch.setattr(FedAvg, "version", 2)
    with raises("FEDAF-RUN-OTHER-VERSION"):
        fedaf.resume(tmp_path / "work" / FEDAVG.directory)
    tally, said = reproduced([FEDAVG], tmp_path)
    assert tally.finished == [FEDAVG]
    assert (tmp_path / "work" / f"{FEDAVG.directory}-other-1" / "LATEST").is_file()
    assert "from round" not in said[-2]
    assert [run.conditions.method_version for run in Archive(tmp_path / "results").all_of(FEDAVG)] == [2]
