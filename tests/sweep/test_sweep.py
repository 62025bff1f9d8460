"""A sweep runs every cell once, whatever stops it, and writes one table."""

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch

from fedaf.federation.run_directory import RunDirectory
from fedaf.reporting.statistics import paired_difference
from fedaf.sweep.slurm import script
from support.commandline import assert_one_sentence
from support.small_grid import AVERAGING, CONDENSING, FIXED, grid_file, swept

TWO_BY_TWO = f"""
{AVERAGING}
[grid]
method.name = ["fedavg", "fedprox"]
run.seed = [0, 1]
"""
CELLS = ["fedavg-seed0", "fedprox-seed0", "fedavg-seed1", "fedprox-seed1"]
FILES = ["runs.csv", "summary.json", "sweep.csv"]


def result(out: Path, cell: str) -> dict:
    found: dict = json.loads((out / cell / "result.json").read_text())
    return found


def files(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in FILES}


def rows(path: Path) -> list[dict[str, str]]:
    with open(path) as file:
        return list(csv.DictReader(file))


def finished(out: Path) -> list[str]:
    return sorted(path.parent.name for path in out.glob("*/result.json"))


def runs_of(out: Path) -> dict[str, bytes]:
    """What tells whether a finished run was touched: its result with its seconds, and what happened when."""
    return {
        name: b"".join((out / name / file).read_bytes() for file in ("result.json", "events.jsonl"))
        for name in finished(out)
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a finished sweep, beside its grid file."""
    folder = tmp_path_factory.mktemp("whole")
    return swept(folder, grid_file(folder, TWO_BY_TWO))


def test_every_cell_is_a_run_of_its_own(whole):
    assert finished(whole / "out") == sorted(CELLS)
    found = result(whole / "out", "fedprox-seed1")
    assert (found["method"], found["seed"], found["rounds"]) == ("fedprox", 1, 2)


def test_the_table_has_means_deviations_and_paired_differences(whole):
    out = whole / "out"
    best = {cell: result(out, cell)["best_accuracy"] for cell in CELLS}
    fedavg, fedprox = rows(out / "sweep.csv")
    values = [best["fedprox-seed0"], best["fedprox-seed1"]]
    assert (fedprox["method"], fedprox["seeds"]) == ("fedprox", "2")
    assert float(fedprox["best_accuracy_mean"]) == fmean(values)
    assert float(fedprox["best_accuracy_deviation"]) == stdev(values)
    theirs = {0: best["fedavg-seed0"], 1: best["fedavg-seed1"]}
    expected = paired_difference(dict(enumerate(values)), theirs)
    assert expected is not None
    assert float(fedprox["best_accuracy_difference"]) == expected.mean
    assert float(fedprox["best_accuracy_difference_low"]) == expected.low
    assert fedprox["best_accuracy_verdict"] == expected.verdict
    assert fedavg["best_accuracy_difference"] == fedavg["best_accuracy_verdict"] == ""
    summary = json.loads((out / "summary.json").read_text())
    assert summary["runs"] == {"planned": 4, "finished": 4}
    (setting,) = summary["settings"]
    assert setting["methods"]["fedprox"]["best_accuracy"]["by_seed"] == {"0": values[0], "1": values[1]}
    assert setting["differences"][0]["mean"] == expected.mean
    assert [row["run"] for row in rows(out / "runs.csv")] == sorted(CELLS)


def test_the_table_is_on_the_screen_and_no_file_has_a_time_in_it(whole):
    said = (whole / "said").read_text()
    assert "Difference to fedavg, paired over 2 seeds" in said
    assert "4 of 4 runs are done." in said
    assert not [name for name, text in files(whole / "out").items() if b"seconds" in text or b"time" in text]


def test_the_same_command_runs_nothing_again(call, whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    before, tables = runs_of(tmp_path / "out"), files(tmp_path / "out")
    for name in FILES:
        (tmp_path / "out" / name).unlink()
    code, out, err = call("sweep", whole / "grid.toml", "--out", "out")
    assert (code, err) == (0, "")
    assert "4 of 4 runs are done." in out
    assert runs_of(tmp_path / "out") == before
    assert files(tmp_path / "out") == tables


def test_a_longer_list_adds_runs_and_keeps_the_others(call, whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    before = runs_of(tmp_path / "out")
    text = (whole / "grid.toml").read_text()
    (tmp_path / "grid.toml").write_text(text.replace("run.seed = [0, 1]", "run.seed = [0, 1, 2]"))
    assert call("sweep", "grid.toml", "--out", "out", "-q")[0] == 0
    after = runs_of(tmp_path / "out")
    assert after.keys() - before.keys() == {"fedavg-seed2", "fedprox-seed2"}
    assert {name: after[name] for name in before} == before


def test_other_settings_in_the_same_folder_are_refused(call, whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    before = runs_of(tmp_path / "out")
    text = (whole / "grid.toml").read_text()
    for old, new, words in (
        ("rounds = 2", "rounds = 3", ["run.rounds is 2, not 3"]),
        ("threads = 1", 'threads = 1, precision = "fp32"', ["run.precision"]),
    ):
        assert old in text
        (tmp_path / "grid.toml").write_text(text.replace(old, new))
        code, _, err = call("sweep", "grid.toml", "--out", "out")
        assert_one_sentence(code, err, ["[FEDAF-SWEEP-OTHER]", "fedavg-seed0", *words])
    assert runs_of(tmp_path / "out") == before


def changed(out: Path, cell: str, **figures: object) -> None:
    """Change the result of a finished run."""
    (out / cell / "result.json").write_text(json.dumps({**result(out, cell), **figures}))


def test_a_run_by_another_version_of_its_method_is_set_aside_and_made_again(call, whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    changed(tmp_path / "out", "fedavg-seed1", method_version=0, best_accuracy=-1.0)
    assert call("sweep", whole / "grid.toml", "--out", "out", "-q")[0] == 0
    assert files(tmp_path / "out") == files(whole / "out")
    assert result(tmp_path / "out", "fedavg-seed1-other-1")["best_accuracy"] == -1.0


def test_runs_that_were_computed_in_different_ways_are_pointed_out(call, whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    changed(tmp_path / "out", "fedavg-seed1", precision="bf16")
    code, out, err = call("sweep", whole / "grid.toml", "--out", "out", "-q")
    assert (code, err) == (0, "")
    assert "computed in different ways, which may explain differences: eager, bf16; eager, fp32." in out
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["computed_by"] == ["eager, bf16", "eager, fp32"]


def test_one_seed_gives_no_verdict(call, whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    text = (whole / "grid.toml").read_text()
    (tmp_path / "grid.toml").write_text(text.replace("run.seed = [0, 1]", "run.seed = [1]"))
    code, out, err = call("sweep", "grid.toml", "--out", "out")
    assert (code, err) == (0, "")
    assert "One seed gives no verdict" in out
    assert [row["best_accuracy_verdict"] for row in rows(tmp_path / "out" / "sweep.csv")] == ["", "no verdict"]


def test_a_run_that_fails_does_not_stop_the_others_and_the_exit_code_says_so(call, tmp_path):
    """With one draw of the split, some seeds give a client too few samples."""
    split = "partition = {{ clients = 4, min_size = 30, max_redraws = 0, alpha = 3.0 }}"
    fixed = FIXED.replace("partition.clients = 2", split)
    grid_file(tmp_path, '[grid]\nmethod.name = ["fedavg"]\nrun.seed = [1, 0, 3]', fixed=fixed)
    for _ in range(2):  # the same command tries it again, and runs what is open
        code, out, err = call("sweep", "grid.toml", "--out", "out")
        assert (code, err) == (1, "")
        (line,) = [line for line in out.splitlines() if "failed:" in line]
        assert line.startswith("fedavg-seed1 failed: ")
        assert line.endswith("]")
        assert "2 of 3 runs are done; 1 failed." in out
        assert finished(tmp_path / "out") == ["fedavg-seed0", "fedavg-seed3"]
        summary = json.loads((tmp_path / "out" / "summary.json").read_text())
        assert summary["runs"] == {"planned": 3, "finished": 2}
        shutil.rmtree(tmp_path / "out" / "fedavg-seed3")


def test_a_setting_that_no_run_can_have_is_refused_before_the_first_run(call, tmp_path):
    grid_file(tmp_path, "[grid]\npartition.alpha = [1.0]", fixed=FIXED.replace("clients = 2", "clients = 1000"))
    code, out, err = call("sweep", "grid.toml", "--out", "out")
    assert_one_sentence(code, err, ["alpha1.0: 1000 clients"])
    assert out == ""
    assert not (tmp_path / "out").exists()


def test_a_run_that_another_process_is_at_work_in_is_left_to_it(call, whole, tmp_path):
    shutil.copytree(whole / "out", tmp_path / "out")
    (tmp_path / "out" / "fedavg-seed1" / "result.json").unlink()
    with RunDirectory(tmp_path / "out" / "fedavg-seed1"):
        code, out, err = call("sweep", whole / "grid.toml", "--out", "out")
    assert (code, err) == (0, "")
    assert "fedavg-seed1 is being run by another process" in out
    assert "3 of 4 runs are done; 1 are being run by another process." in out
    assert len(rows(tmp_path / "out" / "runs.csv")) == 3
    assert call("sweep", whole / "grid.toml", "--out", "out", "-q")[0] == 0
    assert files(tmp_path / "out") == files(whole / "out")


def test_a_budget_stops_and_the_same_command_continues(call, whole, tmp_path):
    code, out, err = call("sweep", whole / "grid.toml", "--out", "out", "--budget", "1e-9")
    assert (code, err) == (0, "")
    assert "0 of 4 runs are done; 4 left" in out
    assert "the same command continues." in out
    assert call("sweep", whole / "grid.toml", "--out", "out", "-q")[0] == 0
    assert files(tmp_path / "out") == files(whole / "out")


def test_the_list_shows_what_is_done_and_writes_nothing(call, whole, tmp_path):
    code, out, err = call("sweep", whole / "grid.toml", "--list", "--out", "new")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines() if " open " in line] == CELLS
    assert not (tmp_path / "new").exists()
    code, out, _ = call("sweep", whole / "grid.toml", "--list", "--out", whole / "out")
    assert out.count("done") == 4


def test_the_default_folder_is_named_after_the_grid_file(call, whole, tmp_path):
    assert call("sweep", whole / "grid.toml", "-q", "--cell", "fedavg-seed1")[0] == 0
    assert finished(tmp_path / "runs" / "grid") == ["fedavg-seed1"]


def test_a_script_for_slurm_runs_the_open_cells(call, whole, tmp_path):
    folder = tmp_path / "with a space"
    grid = grid_file(folder, TWO_BY_TWO)
    assert call("sweep", grid, "--out", folder / "out", "--cell", "fedprox-seed0,fedavg-seed1", "-q")[0] == 0
    before = runs_of(folder / "out")
    code, out, err = call("sweep", grid, "--out", folder / "out", "--slurm", "--device", "cpu")
    assert (code, err) == (0, "")
    sbatch = folder / "out" / "sweep.sbatch"
    assert f"2 runs are open. Submit them with: sbatch '{sbatch}'" in out
    assert "--array=0-1\n" in sbatch.read_text()
    subprocess.run(["bash", "-n", sbatch], check=True)
    assert run_task(sbatch, "2").returncode == 2
    assert "SLURM_ARRAY_TASK_ID" in run_task(sbatch, None).stderr
    assert finished(folder / "out") == ["fedavg-seed1", "fedprox-seed0"]
    for task, cell in (("1", "fedprox-seed1"), ("0", "fedavg-seed0")):
        done = run_task(sbatch, task)
        assert done.returncode == 0, done.stderr
        assert runs_of(folder / "out").keys() - before.keys() >= {cell}
    assert {name: run for name, run in runs_of(folder / "out").items() if name in before} == before
    assert {row["run"]: row["best_accuracy"] for row in rows(folder / "out" / "runs.csv")} == {
        row["run"]: row["best_accuracy"] for row in rows(whole / "out" / "runs.csv")
    }
    assert "nothing to submit" in call("sweep", grid, "--out", folder / "out", "--slurm")[1]


def run_task(sbatch: Path, task: str | None) -> subprocess.CompletedProcess[str]:
    """Run the body of a script for Slurm as one of its tasks."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environment |= {} if task is None else {"SLURM_ARRAY_TASK_ID": task}
    return subprocess.run(["bash", sbatch], env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_an_array_for_slurm_has_at_most_a_thousand_tasks(tmp_path):
    text = script([f"cell{number}" for number in range(2500)], ["fedaf"], out=tmp_path, here=tmp_path)
    assert "--array=0-833\n" in text
    assert "    cell0,cell1,cell2\n" in text
    assert "    cell2499\n" in text


def test_a_task_for_slurm_has_as_many_cells_as_run_at_once(call, whole, tmp_path):
    code, _, err = call("sweep", whole / "grid.toml", "--out", "out", "--slurm", "--jobs", "3")
    assert (code, err) == (0, "")
    text = (tmp_path / "out" / "sweep.sbatch").read_text()
    assert "--array=0-1\n" in text
    assert "    fedavg-seed0,fedprox-seed0,fedavg-seed1\n    fedprox-seed1\n" in text
    assert "--jobs 3" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_login_node_without_the_device_can_list_and_write_the_script(call, tmp_path):
    grid_file(tmp_path, TWO_BY_TWO, fixed=FIXED.replace('"cpu"', '"cuda"'))
    assert call("sweep", "grid.toml", "--list")[0] == 0
    assert call("sweep", "grid.toml", "--slurm", "--out", "out")[0] == 0
    code, _, err = call("sweep", "grid.toml", "--out", "out")
    assert_one_sentence(code, err, ["[FEDAF-DEVICE-MISSING]", "fedavg-seed0", "cuda"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml"], ["[FEDAF-CONFIG-READ]", "nowhere.toml"]),
        ([], ["[FEDAF-CLI-USAGE]", "GRID.toml"]),
        (["GRID", "--budget", "0"], ["[FEDAF-SWEEP-BUDGET]", "--budget is 0"]),
        (["GRID", "--jobs", "0"], ["[FEDAF-CLI-USAGE]", "jobs"]),
        (["GRID", "--cell", "fedavg-seed7"], ["[FEDAF-SWEEP-CELL]", "fedavg-seed7", "did you mean", "--list"]),
        (["GRID", "--out", "GRID"], ["[FEDAF-RUN-NOT-A-DIRECTORY]"]),
        (["GRID", "--out", "FOLDER"], ["[FEDAF-RUN-DIRECTORY-IN-USE]"]),
    ],
)
def test_a_command_that_makes_no_sense_is_one_sentence(call, whole, tmp_path, arguments, words):
    places = {"GRID": whole / "grid.toml", "FOLDER": whole}
    code, _, err = call("sweep", *(places.get(word, word) for word in arguments))
    assert_one_sentence(code, err, words)
    assert list(tmp_path.iterdir()) == []


THREE_BY_TWO_BY_THREE = f"""
{AVERAGING}{CONDENSING}
[grid]
method.name = ["fedaf", "feddm", "fedavg"]
partition.alpha = [0.5, 5.0]
run.seed = [0, 1, 2]
"""


def started(grid: Path, out: Path) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "fedaf", "sweep", str(grid), "--out", str(out), "--jobs", "2"]
    return subprocess.Popen(line, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def completed(grid: Path, out: Path) -> None:
    process = started(grid, out)
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said
    assert "18 of 18 runs are done." in said


@pytest.mark.slow  # two processes that import everything
def test_two_processes_share_a_sweep_and_no_run_is_started_twice(whole, tmp_path):
    line = [sys.executable, "-m", "fedaf", "sweep", str(whole / "grid.toml"), "--out", str(tmp_path / "out"), "-v"]
    processes = [subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)]
    said = [process.communicate(timeout=250)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    for cell in CELLS:
        lines = (tmp_path / "out" / cell / "events.jsonl").read_text().splitlines()
        assert Counter(json.loads(line)["event"] for line in lines)["started"] == 1, said
    assert files(tmp_path / "out") == files(whole / "out")


@pytest.mark.slow  # eighteen runs twice, and six starts of three processes
def test_a_sweep_that_is_killed_anywhere_writes_the_table_of_one_that_was_not(tmp_path):
    grid = grid_file(tmp_path, THREE_BY_TWO_BY_THREE)
    completed(grid, tmp_path / "whole")
    out, moments, kept, interrupted = tmp_path / "killed", random.Random(7), {}, Counter()
    for least in (0, 3, 7, 12):
        process = started(grid, out)
        while not (out / "sweep.json").is_file() or len(finished(out)) < least:
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        moment = time.monotonic() + moments.uniform(0, 1.5)
        while time.monotonic() < moment and len(finished(out)) < least + 3:  # on a fast machine all would be finished
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kept |= {name: run for name, run in runs_of(out).items() if name not in kept}
        interrupted.update(path.parent.name for path in out.glob("*/events.jsonl") if path.parent.name not in kept)
    assert 12 <= len(kept) < 18
    completed(grid, out)
    after = runs_of(out)
    assert {name: after[name] for name in kept} == kept  # no finished cell was run again
    assert files(out) == files(tmp_path / "whole")
    assert interrupted.total() >= 1
    for name in after:
        events = [json.loads(line) for line in (out / name / "events.jsonl").read_text().splitlines()]
        assert sum(event["event"] == "started" for event in events) <= 1 + interrupted[name]
        assert [event["metrics"]["round"] for event in events if event["event"] == "round_ended"] == [1, 2]
