"""Cells are run once, whatever stops them: a kill, a budget, a failure of another."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedaf.federation.observer import Observer
from fedaf.reproduce.archive import NOT_RECORDED, Archive, Run
from fedaf.reproduce.cells import Cell, config_of
from fedaf.reproduce.order import Filter, plan
from fedaf.reproduce.running import Reproduction
from fedaf.sweep.budget import Budget
from fedaf.sweep.identity import identity
from fedaf.sweep.pace import Pace
from fedaf.sweep.running import Audience
from support import ROOT, TESTS
from support.commandline import assert_one_sentence
from support.digit_cells import BROKEN, FEDAF, FEDAVG, FEDAVG_1, places, reproduced
from support.reports import Content

RESULTS = ROOT / "results"
FILES = ["config.toml", "counts.json", "metrics.jsonl", "result.json"]


def figures(folder: Path, cell: Cell) -> dict:
    found: dict = json.loads((folder / "results" / cell.directory / "result.json").read_text())
    return found


def curve(folder: Path, cell: Cell) -> list[float]:
    return list(figures(folder, cell)["curve"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    tally, _ = reproduced([FEDAVG, FEDAVG_1], folder)
    assert tally.finished == [FEDAVG, FEDAVG_1]
    return folder


def test_a_finished_cell_lies_in_the_results_and_nothing_of_it_elsewhere(undisturbed):
    run = undisturbed / "results" / FEDAVG.directory
    assert sorted(path.name for path in run.iterdir()) == FILES
    assert not any(path.is_file() for path in (undisturbed / "work").rglob("*"))
    assert str(undisturbed) not in (run / "config.toml").read_text()
    counts = json.loads((run / "counts.json").read_text())
    assert len(counts) == 3
    assert sum(map(sum, counts.values())) == 1438


def test_what_is_done_is_not_run_again(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "results", tmp_path / "results")
    before = (tmp_path / "results" / FEDAVG.directory / "result.json").stat().st_mtime_ns
    more = replace(FEDAVG, seed=2)
    tally, _ = reproduced([FEDAVG, more, FEDAVG_1], tmp_path)
    assert tally.finished == [more]
    assert (tmp_path / "results" / FEDAVG.directory / "result.json").stat().st_mtime_ns == before


def test_after_a_kill_it_goes_on_within_the_run(undisturbed, tmp_path):
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    line = [sys.executable, str(TESTS / "support" / "reproduce_and_die.py"), str(tmp_path)]
    killed = subprocess.run(line, check=False, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    finished = curve(tmp_path, FEDAF)
    tally, said = reproduced([FEDAF, FEDAVG], tmp_path)
    assert tally.finished == [FEDAVG]
    assert said[0].startswith(f"1/1 {FEDAVG.directory} (1 left")
    assert said[0].endswith("from round 2")
    assert curve(tmp_path, FEDAVG) == curve(undisturbed, FEDAVG)
    assert curve(tmp_path, FEDAF) == finished


class Clock(Observer):
    """Time that passes only when a round begins: a minute each."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def round_started(self, round: int) -> None:
        self.seconds += 60


def test_a_budget_stops_after_the_round_that_exceeds_it_and_the_next_call_goes_on(undisturbed, tmp_path):
    clock = Clock()
    tally, _ = reproduced([FEDAVG, FEDAVG_1], tmp_path, observer=clock, budget=Budget(1.5, lambda: clock.seconds))
    assert (tally.finished, tally.left) == ([], [FEDAVG, FEDAVG_1])
    reproduction = Reproduction([FEDAVG, FEDAVG_1], places(tmp_path))
    assert [reproduction.rounds_done(cell) for cell in (FEDAVG, FEDAVG_1)] == [2, 0]
    tally, said = reproduced([FEDAVG, FEDAVG_1], tmp_path)
    assert tally.finished == [FEDAVG, FEDAVG_1]
    assert "from round 3" in said[0]
    assert [curve(tmp_path, cell) for cell in tally.finished] == [
        curve(undisturbed, cell) for cell in (FEDAVG, FEDAVG_1)
    ]


def test_a_last_round_that_exceeds_the_budget_finishes_its_cell(tmp_path):
    clock = Clock()
    tally, _ = reproduced([FEDAVG, FEDAVG_1], tmp_path, observer=clock, budget=Budget(3, lambda: clock.seconds))
    assert (tally.finished, tally.left) == ([FEDAVG], [FEDAVG_1])


def test_a_cell_that_fails_is_one_line_and_the_others_are_run(tmp_path):
    tally, said = reproduced([BROKEN, FEDAVG], tmp_path)
    assert tally.finished == [FEDAVG]
    assert list(tally.failed) == [BROKEN]
    (line,) = [line for line in said if "failed" in line]
    assert line.startswith(f"{BROKEN.directory} failed: 1000 clients")
    assert "\n" not in line


def test_a_run_that_was_finished_but_not_moved_is_moved(undisturbed, tmp_path):
    work, done = tmp_path / "work" / FEDAVG.directory, undisturbed / "results" / FEDAVG.directory
    shutil.copytree(done, work)
    counts = json.loads((done / "counts.json").read_text())
    (work / "partition.json").write_text(json.dumps({"counts": counts}))
    tally, said = reproduced([FEDAVG], tmp_path)
    assert tally.finished == [FEDAVG]
    assert len(said) == 1  # nothing began
    assert figures(tmp_path, FEDAVG) == figures(undisturbed, FEDAVG)
    assert not work.exists()


def test_a_run_that_another_process_is_at_work_in_is_left_to_it(tmp_path):
    class Meddler(Observer):
        def round_ended(self, metrics) -> None:
            if metrics["round"] == 1:
                self.seen = reproduced([FEDAVG, FEDAVG_1], tmp_path)

    meddler = Meddler()
    tally, _ = reproduced([FEDAVG], tmp_path, observer=meddler)
    assert tally.finished == [FEDAVG]
    other, said = meddler.seen
    assert (other.busy, other.finished) == ([FEDAVG], [FEDAVG_1])
    assert any("another process" in line for line in said)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: json.dumps({**json.loads(text), "curve": [1.0]}),
        lambda text: json.dumps({**json.loads(text), "seed": 7}),
        lambda text: json.dumps({key: value for key, value in json.loads(text).items() if key != "versions"}),
    ],
    ids=["cut", "no table", "short", "other", "no versions"],
)
def test_a_damaged_result_is_named_and_its_cell_is_open_again(undisturbed, tmp_path, damage):
    shutil.copytree(undisturbed / "results", tmp_path / "results")
    file = tmp_path / "results" / FEDAVG.directory / "result.json"
    file.write_text(damage(file.read_text()))
    archive = Archive(tmp_path / "results")
    (sentence,) = archive.damaged.values()
    assert str(file) in sentence
    assert archive.find(FEDAVG) is None
    assert archive.find(FEDAVG_1) is not None


def test_a_damaged_run_is_replaced_by_a_whole_one(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "results", tmp_path / "results")
    (tmp_path / "results" / FEDAVG.directory / "result.json").write_text("{")
    tally, _ = reproduced([FEDAVG, FEDAVG_1], tmp_path)
    assert tally.finished == [FEDAVG]
    assert curve(tmp_path, FEDAVG) == curve(undisturbed, FEDAVG)
    assert not Archive(tmp_path / "results").damaged


def test_a_run_with_other_settings_does_not_count_and_is_not_overwritten(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "results", tmp_path / "results")
    longer = replace(FEDAVG, options=(("local_epochs", 2),))
    tally, _ = reproduced([longer], tmp_path)
    assert tally.finished == [longer]
    archive = Archive(tmp_path / "results")
    assert [archive.find(cell).path.name for cell in (FEDAVG, longer)] == ["fedavg-seed0", "fedavg-seed0-2"]  # type: ignore[union-attr]
    assert [how for _, how in archive.others([longer, FEDAVG_1])] == [
        f"unlike {longer.directory}, method.local_epochs is 1, not 2"
    ]


def test_a_run_that_cannot_be_understood_keeps_its_place(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "results", tmp_path / "results")
    theirs = tmp_path / "results" / FEDAVG.directory / "config.toml"
    theirs.write_text(theirs.read_text().replace("[model]", "[model]\nof_a_later_version = 1"))
    assert reproduced([FEDAVG], tmp_path)[0].finished == [FEDAVG]
    assert "of_a_later_version" in theirs.read_text()
    assert reproduced([FEDAVG], tmp_path)[0].finished == []


def test_where_and_how_a_run_was_computed_does_not_matter(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "results", tmp_path / "results")
    file = tmp_path / "results" / FEDAVG.directory / "config.toml"
    text = file.read_text()
    for old, new in (
        ('dir = "data"', 'dir = "elsewhere"'),
        ('device = "cpu"', 'device = "cuda"'),
        ("threads = 1\n", ""),
    ):
        assert old in text
        text = text.replace(old, new)
    file.write_text(text)
    assert Archive(tmp_path / "results").find(FEDAVG) is not None


def test_the_runs_in_the_repository_are_recognised():
    archive, cells = Archive(RESULTS), plan("all", Filter())
    assert not archive.damaged
    known = {cell.directory for cell in cells if archive.all_of(cell)}
    assert known >= {"cifar10-alpha0.02/fedaf-seed0", *(cell.directory for cell in plan("communication", Filter()))}
    assert archive.find(Cell("cifar10", 0.02, "fedavg")) is not None
    others = {run.path.name: how for run, how in archive.others(cells)}
    assert others["fedaf-200-steps-seed0"].startswith("unlike pacs/fedaf-seed0, method.local_steps is 200, not 1000")


def a_run(cell: Cell, device: str, seconds: float) -> Run:
    return Run(Path(), identity(config_of(cell)), NOT_RECORDED, {"device": device, "seconds": seconds}, None)


def test_time_left_is_that_of_the_same_runs_on_the_same_device():
    pace = Pace("cpu", [a_run(FEDAVG, "cuda (fast)", 1.0)])
    assert pace.seconds(FEDAVG_1) is None
    pace.assume(FEDAVG, 50.0)
    assert pace.seconds(FEDAVG_1) == 50.0
    pace.learn(a_run(FEDAVG, "cpu", 10.0))
    pace.learn(a_run(FEDAVG_1, "cpu", 20.0))
    pace.learn(a_run(replace(FEDAVG, alpha=0.7), "cpu", 90.0))
    assert pace.seconds(replace(FEDAVG, seed=5)) == 15.0
    assert pace.seconds(replace(FEDAVG, alpha=0.5)) == 40.0
    assert pace.seconds(FEDAF) is None


def test_time_is_known_of_cells_whose_other_seeds_are_done(undisturbed, tmp_path):
    shutil.copytree(undisturbed / "results", tmp_path / "results")
    more = replace(FEDAVG, seed=2)
    reproduction = Reproduction([more, FEDAF], places(tmp_path))
    assert reproduction.seconds_left(more) == pytest.approx(
        sum(figures(undisturbed, cell)["seconds"] for cell in (FEDAVG, FEDAVG_1)) / 2
    )
    assert reproduction.time_left([more, FEDAF]).endswith("1 of them of unknown length")


def cifar10(folder: Path, *, train: int = 1000) -> None:
    """Random pictures in the shape of CIFAR-10."""
    rng, arrays = np.random.default_rng(0), {}
    for split, count in (("train", train), ("test", 100)):
        arrays[f"x_{split}"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 10
    folder.mkdir()
    np.savez(folder / "cifar10.npz", **arrays)


ONE = ["communication", "--dataset", "cifar10", "--alpha", "0.05", "--seeds", "0", "--device", "cpu"]


def test_the_command_says_what_a_budget_left_and_exits_well(call, tmp_path):
    cifar10(tmp_path / "data")
    code, out, err = call("reproduce", *ONE, "--budget", "1e-6")
    assert (code, err) == (0, "")
    assert "0 of 1 runs are in results; 1 left" in out
    assert "the same command continues." in out


def test_the_command_exits_with_1_if_a_run_failed(call, tmp_path):
    cifar10(tmp_path / "data", train=20)
    code, out, err = call("reproduce", *ONE, "-q")
    assert (code, err) == (1, "")
    first, last = out.splitlines()
    assert first.startswith("cifar10-alpha0.05/fedaf-upload-seed0 failed: 10 clients")
    assert last == "0 of 1 runs are in results; 1 failed."


def test_the_command_runs_what_there_are_data_for(call, tmp_path):
    cifar10(tmp_path / "data")
    choice = ["communication", "--dataset", "cifar10,cifar100", "--alpha", "0.1", "--seeds", "0", "--methods", "fedaf"]
    code, out, err = call("reproduce", *choice, "--device", "cpu", "-q")
    assert (code, err) == (0, "")
    assert "cifar100 is not in data, so 1 of the runs must wait" in out
    assert "1 of 2 runs are in results." in out
    assert "The report is in runs/reproduce/report-communication.html." in out
    page = Content(tmp_path / "runs" / "reproduce" / "report-communication.html")
    assert {"summary", "holdings", "costs"} <= set(page.sections)
    run = tmp_path / "results" / "cifar10-alpha0.1" / "fedaf-upload-seed0"
    assert sorted(path.name for path in run.iterdir()) == FILES
    code, out, err = call("reproduce", *choice, "--list")
    assert (code, err) == (0, "")
    states = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if "seed0" in line}
    assert states["cifar10-alpha0.1/fedaf-upload-seed0"] == "done"
    assert states["cifar100-alpha0.1/fedaf-upload-seed0"] == "no data"
    assert "cifar100 is not in data, so 1 of the runs must wait" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["[FEDAF-REPRODUCE-TABLE]", "label-skew", "--render"]),
        (["gama"], ["[FEDAF-REPRODUCE-TABLE]", "gama", "'gamma'"]),
        (["gamma", "--budget", "0"], ["[FEDAF-REPRODUCE-BUDGET]", "--budget is 0"]),
        (["gamma", "--seeds", "1,x"], ["[FEDAF-REPRODUCE-FILTER]", "--seeds", "1,x"]),
        (["gamma", "--seeds", "-1"], ["[FEDAF-CONFIG-VALUE]", "run.seed", "-1"]),
        (["ipc", "--alpha", "small"], ["[FEDAF-REPRODUCE-FILTER]", "--alpha", "small"]),
    ],
)
def test_a_command_that_makes_no_sense_is_one_sentence(call, arguments, words):
    code, _, err = call("reproduce", *arguments)
    assert_one_sentence(code, err, words)


def test_several_cells_at_once_give_the_numbers_of_one_at_a_time(undisturbed, tmp_path):
    said: list[str] = []
    cells = [FEDAVG, BROKEN, FEDAVG_1]
    tally = Reproduction(cells, places(tmp_path)).run(Budget(), Audience(said.append), jobs=2)
    assert sorted(tally.finished, key=str) == sorted([FEDAVG, FEDAVG_1], key=str)
    assert list(tally.failed) == [BROKEN]
    assert not tally.left
    for cell in tally.finished:
        assert curve(tmp_path, cell) == curve(undisturbed, cell)
    assert sum(line.startswith(("1/3", "2/3", "3/3")) for line in said) == 3


def test_several_cells_at_once_keep_to_the_budget_and_lose_no_round(undisturbed, tmp_path):
    tally = Reproduction([FEDAVG, FEDAVG_1], places(tmp_path)).run(Budget(1e-9), Audience(str), jobs=2)
    assert (tally.finished, tally.left) == ([], [FEDAVG, FEDAVG_1])
    longer = [replace(cell, rounds=300) for cell in (FEDAVG, FEDAVG_1)]
    reproduction = Reproduction(longer, places(tmp_path))
    tally = reproduction.run(Budget(15 / 60), Audience(str), jobs=2)
    assert tally.left == longer
    done = [reproduction.rounds_done(cell) for cell in longer]
    assert all(0 < rounds < 300 for rounds in done)
    again = Reproduction(longer, places(tmp_path))
    assert [again.rounds_done(cell) for cell in longer] == done
