"""``fedaf compare --seeds``: a run per method and seed, means and differences, references, and resuming."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.terminal import Terminal
from fedaf.reporting.statistics import mean_and_deviation, paired_difference
from fedaf.reporting.tables import duration
from fedaf.runs import assembly, estimate
from fedaf.runs.comparison import Job
from fedaf.runs.estimate import Pace
from support.commandline import assert_one_sentence
from support.errors import raises
from support.small import final_tensors, small_experiment

FLAGS = ["--dataset", "digits", "--rounds", "2", "--clients", "3", "--device", "cpu"]
FLAGS += ["--set", "model.width=4", "--set", "run.threads=1", "--set", "method.local_epochs=1"]
KEEP = ["--set", "run.keep_checkpoints=0"]
METHODS = ("fedavg", "fedprox", "pooled", "local")


def result_of(run: Path) -> dict:
    found: dict = json.loads((run / "result.json").read_text())
    return found


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


def test_several_seeds_from_the_runs_to_the_tables_and_files_and_on_after_a_stop(call, tmp_path, wide):
    line = ("compare", "--methods", ",".join(METHODS), "--seeds", "3-4", *FLAGS, *KEEP, "--out", "c")
    code, out, err = call(*line, "-v")
    assert err == "" or "Traceback" not in err
    assert code == 0
    folder = tmp_path / "c"
    results = {(name, seed): result_of(folder / name / f"seed{seed}") for name in METHODS for seed in (3, 4)}
    assert all(result["seed"] == seed for (_, seed), result in results.items())
    splits = {seed: {(folder / n / f"seed{seed}" / "partition.json").read_text() for n in METHODS} for seed in (3, 4)}
    assert [len(of_seed) for of_seed in splits.values()] == [1, 1]
    assert splits[3] != splits[4]
    for name in METHODS:
        best = [results[name, seed]["best_accuracy"] for seed in (3, 4)]
        assert mean_and_deviation(best) in next(row for row in out.splitlines() if row.startswith(f"│ {name} "))
    assert "2 seeds" in out
    assert "fedavg on digits, seed 4" in out
    assert "Difference to fedavg, paired over 2 seeds" in out
    assert "reference for comparison, not a federated method" in out
    assert {"curves.png", "partition-seed3.png", "partition-seed4.png"} <= {path.name for path in folder.iterdir()}

    lines = list(csv.DictReader(io.StringIO((folder / "comparison.csv").read_text())))
    assert {(row["method"], int(row["seed"])): float(row["best_accuracy"]) for row in lines} == {
        key: result["best_accuracy"] for key, result in results.items()
    }
    assert {row["method"] for row in lines if row["upload_bytes_per_client_round"] == ""} == {"pooled", "local"}
    summary = json.loads((folder / "summary.json").read_text())
    of = {name: {seed: results[name, seed]["last_accuracy"] for seed in (3, 4)} for name in METHODS}
    for found in (one for one in summary["differences"] if one["figure"] == "last_accuracy"):
        expected = paired_difference(of[found["method"]], of["fedavg"])
        assert (found["mean"], found["low"], found["high"]) == (expected.mean, expected.low, expected.high)
        assert found["verdict"] == ("reference" if found["method"] in ("pooled", "local") else expected.verdict)
    assert summary["methods"]["fedprox"]["best_accuracy"]["by_seed"].keys() == {"3", "4"}

    stopped, lost = folder / "fedprox" / "seed4", folder / "local" / "seed4"
    finished = (folder / "fedavg" / "seed4" / "result.json").read_bytes()
    tensors = final_tensors(stopped)
    (stopped / "result.json").unlink()
    (stopped / "LATEST").write_text("round-1")
    shutil.rmtree(lost)
    code, out, err = call("compare", "--resume", "c", "--against", "fedprox")
    assert (code, err) == (0, "")
    assert "Difference to fedprox" in out
    assert "fedprox on digits, seed 4 on cpu: rounds 2 to 2" in out
    assert (folder / "fedavg" / "seed4" / "result.json").read_bytes() == finished
    for run, key in ((stopped, ("fedprox", 4)), (lost, ("local", 4))):
        assert result_of(run)["curve"] == results[key]["curve"]
    again = final_tensors(stopped)
    assert all((again[name] == tensor).all() for name, tensor in tensors.items())


def test_one_seed_keeps_the_old_layout_and_gives_no_verdict(call, tmp_path, wide):
    code, out, err = call("compare", "--methods", "fedavg,fedprox", "--seeds", "5", *FLAGS, "--out", "c", "-q")
    assert (code, err) == (0, "")
    assert result_of(tmp_path / "c" / "fedavg")["seed"] == 5
    assert "seed 5" in out
    assert "One seed gives no verdict" in out
    assert "Difference to" not in out
    summary = json.loads((tmp_path / "c" / "summary.json").read_text())
    assert {one["verdict"] for one in summary["differences"]} == {"no verdict"}


def test_a_comparison_of_an_older_version_is_continued(call, tmp_path, wide):
    given = {"data": {"name": "digits"}, "run": {"rounds": 1, "device": "cpu"}, "model": {"width": 4}}
    runs = {
        name: configuration.build({**given, "method": {"name": name, "local_epochs": 1}}).to_toml()
        for name in ("fedavg", "fedprox")
    }
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "comparison.json").write_text(json.dumps({"target": 5.0, "runs": runs}))
    code, out, err = call("compare", "--resume", "c", "-q")
    assert (code, err) == (0, "")
    assert "rounds to 5 %" in out
    assert (tmp_path / "c" / "fedprox" / "result.json").is_file()


@pytest.mark.parametrize(
    ("text", "expected"), [("0,1,2", (0, 1, 2)), ("0-4", (0, 1, 2, 3, 4)), ("7", (7,)), (" 0-1 , 10,", (0, 1, 10))]
)
def test_seeds_are_numbers_and_ranges(text, expected):
    assert options.seeds(text) == expected


@pytest.mark.parametrize("text", ["", ",", "1,1", "0-2,1", "3-1", "a", "-1", "1.5", "0-", "0-99999", "1 - 2"])
def test_seeds_that_are_no_list_or_doubled_are_refused(text):
    with raises("FEDAF-CLI-SEEDS"):
        options.seeds(text)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--seeds", "0,1", "--seed", "3"], ["[FEDAF-CLI-SEEDS]", "--seed"]),
        (["--seeds", "0,1", "--set", "run.seed=3"], ["[FEDAF-CLI-SEEDS]", "run.seed"]),
        (["--seeds", "0,0"], ["[FEDAF-CLI-SEEDS]", "0 twice"]),
        (["--against", "moon"], ["[FEDAF-CLI-AGAINST]", "'moon'", "fedaf, fedavg"]),
        (["--seeds", "0", "--resume", "x"], ["[FEDAF-CLI-RESUME]", "--seeds"]),
    ],
)
def test_wrong_flags_are_one_sentence(call, tmp_path, more, words):
    code, _, err = call("compare", *more)
    assert_one_sentence(code, err, words)
    assert list(tmp_path.iterdir()) == []


def test_data_of_the_same_table_are_read_once():
    shared = assembly.SharedData()
    built = [configuration.build({"run": {"seed": seed}}) for seed in (0, 1)]
    other = configuration.build({"data": {"validation": 100}})
    assert shared.load(built[0]) is shared.load(built[1])
    assert len(shared.load(other).test) == 100


def test_the_time_of_all_runs_is_estimated_once_and_adds_up(monkeypatch, tmp_path):
    pace = Pace(forward=0.01, backward=0.02)
    measured = []
    monkeypatch.setattr(estimate, "measure", lambda experiment: measured.append(experiment) or pace)
    experiments = [small_experiment(name, seed=seed) for seed in (0, 1) for name in ("fedavg", "moon")]
    jobs = [Job(tmp_path, experiment) for experiment in experiments[:3]]
    jobs.append(Job(tmp_path, experiments[3], rounds_done=2))  # of 3
    text = io.StringIO()
    terminal = Terminal()
    terminal.console = Console(file=text, width=200)
    terminal.announce_all(jobs)
    assert len(measured) == 1
    fedavg, moon = (estimate.seconds(experiment, pace) for experiment in experiments[:2])
    of_moon = moon + estimate.seconds(experiments[3], pace) / 3
    expected = f"4 runs will take about {duration(2 * fedavg + of_moon)} on cpu: "
    expected += f"fedavg {duration(2 * fedavg)}, moon {duration(of_moon)}."
    assert expected in text.getvalue()
    assert text.getvalue().count("will take about") == 1
