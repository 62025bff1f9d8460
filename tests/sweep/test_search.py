"""A search looks at held-out images only, repeats nothing after a kill, and ends with settings to paste into a run."""

import csv
import json
import os
import random
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import optuna
import pytest

from fedaf.config import build
from fedaf.errors import UserError
from fedaf.federation.run_directory import RunDirectory
from fedaf.sweep.search import _ask as ask
from fedaf.sweep.search import _study as opened
from fedaf.sweep.search import _trials as trials_of
from fedaf.sweep.space import Search
from support.commandline import assert_one_sentence
from support.small_grid import FIXED, grid_file, swept

HELD_OUT = FIXED.replace('data.name = "npz:{data}"', 'data = {{ name = "npz:{data}", validation = 40 }}')
SEARCH = """
method.name = "fedavg"
[search]
trials = 4
seeds = [100, 101]
[search.parameters]
method.lr = { low = 1e-3, high = 0.5, log = true }
method.local_epochs = { low = 1, high = 3 }
method.momentum = { choices = [0.0, 0.9] }
"""
FILES = ["best.toml", "trials.csv"]


def files(out: Path) -> dict[str, str]:
    return {name: (out / name).read_text() for name in FILES}


def trials(out: Path) -> list[dict[str, str]]:
    with open(out / "trials.csv") as file:
        return list(csv.DictReader(file))


def results(out: Path) -> dict[str, dict]:
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("*/result.json"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a finished search, beside its grid file."""
    folder = tmp_path_factory.mktemp("search")
    return swept(folder, grid_file(folder, SEARCH, fixed=HELD_OUT))


def test_every_trial_is_judged_by_the_mean_over_its_seeds_on_held_out_images(whole):
    found = results(whole / "out")
    assert list(found) == [f"trial-000{number}-seed{seed}" for number in range(4) for seed in (100, 101)]
    assert {run["tested_on"] for run in found.values()} == {"40 held-out training images"}
    assert len({trial["method.lr"] for trial in trials(whole / "out")}) == 4
    for number, trial in enumerate(trials(whole / "out")):
        scores = [found[f"trial-000{number}-seed{seed}"]["last_accuracy"] for seed in (100, 101)]
        assert float(trial["last_accuracy"]) == sum(scores) / 2
        settings = tomllib.loads((whole / "out" / f"trial-000{number}-seed100" / "config.toml").read_text())["method"]
        assert settings["lr"] == float(trial["method.lr"])
        assert 1e-3 <= settings["lr"] <= 0.5
        assert settings["local_epochs"] == int(trial["method.local_epochs"])


def test_the_best_trial_becomes_settings_of_a_run_on_the_test_set(whole):
    best = max(trials(whole / "out"), key=lambda trial: float(trial["last_accuracy"]))
    config = build(tomllib.loads((whole / "out" / "best.toml").read_text()))
    assert config.data.validation is None
    assert config.run.seed == 0
    assert (config.method_name, config.method.lr) == ("fedavg", float(best["method.lr"]))
    said = (whole / "said").read_text()
    assert f"The best is trial {best['trial']}" in said
    assert f"fedaf run {whole / 'out' / 'best.toml'}" in said


def test_the_same_command_runs_nothing_again(call, whole):
    before, runs = files(whole / "out"), results(whole / "out")
    code, out, err = call("sweep", whole / "grid.toml", "--out", whole / "out")
    assert (code, err) == (0, "")
    assert "4 of 4 trials are done." in out
    assert (files(whole / "out"), results(whole / "out")) == (before, runs)


def test_a_search_that_is_killed_goes_on_with_the_same_trials(call, whole, tmp_path):
    line = [sys.executable, "-m", "fedaf", "sweep", str(whole / "grid.toml"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for text in process.stdout:
        if "trial-0001-seed101" in text:
            os.killpg(process.pid, signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = results(tmp_path / "out")
    assert {"trial-0000-seed100", "trial-0000-seed101", "trial-0001-seed100"} <= before.keys()
    assert len(before) < 8
    assert call("sweep", whole / "grid.toml", "--out", tmp_path / "out", "-q")[0] == 0
    assert files(tmp_path / "out") == files(whole / "out")
    after = results(tmp_path / "out")
    assert {name: after[name] for name in before} == before  # with their seconds: they were not run again


def half_drawn(out: Path) -> None:
    """Leave a trial in the study that has one of its three parameters, as a kill may do."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{out / 'study.db'}")
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    study.ask({"method.lr": optuna.distributions.FloatDistribution(1e-3, 0.5, log=True)})
    storage.remove_session()
    storage.engine.dispose()


def test_more_trials_continue_a_search_even_after_one_that_was_half_drawn(call, whole, tmp_path):
    grid = tmp_path / "grid.toml"
    text = (whole / "grid.toml").read_text()
    for number in (1, 2):
        grid.write_text(text.replace("trials = 4", f"trials = {number}"))
        assert call("sweep", grid, "--out", "out", "-q")[0] == 0
        half_drawn(tmp_path / "out")
    assert trials(tmp_path / "out") == trials(whole / "out")[:2]
    assert len(results(tmp_path / "out")) == 4


def drawn(search: Search, out: Path, *, at_once: int, kills: random.Random | None = None) -> list[dict]:
    """The trials of a search whose runs take no time, and that is killed where the generator says so."""
    out.mkdir()

    def is_killed() -> bool:
        return kills is not None and kills.random() < 0.3

    while True:
        with opened(optuna, search, out) as study:
            trials = trials_of(study, search)
            ended = sum(trial.state.is_finished() for trial in trials)
            if ended >= search.table.trials:
                return [trial.params for trial in trials]
            target = min(search.table.trials, (ended // at_once + 1) * at_once)
            if is_killed():
                ask(optuna, study, search, up_to=max(len(trials), target - 1))
                continue
            ask(optuna, study, search, up_to=target)
            for trial in trials_of(study, search):
                if not trial.state.is_finished() and not is_killed():
                    study.tell(trial.number, -((trial.params["method.lr"] - 0.1) ** 2))


@pytest.mark.slow  # many small transactions
def test_trials_that_learn_from_others_do_not_depend_on_kills(tmp_path):
    parameters = "method.lr = { low = 0.001, high = 0.5, log = true }"
    fixed = 'data.validation = 10\nmethod.name = "fedavg"'
    search = Search.read(tomllib.loads(a_search(parameters, search="trials = 16", fixed=fixed)))
    whole = drawn(search, tmp_path / "whole", at_once=2)
    assert len({trial["method.lr"] for trial in whole}) == 16
    assert drawn(search, tmp_path / "killed", at_once=2, kills=random.Random(3)) == whole


def test_another_search_in_the_same_folder_is_refused(call, whole, tmp_path):
    text = (whole / "grid.toml").read_text()
    for old, new in (("high = 0.5", "high = 0.4"), ("rounds = 2", "rounds = 1"), ("[100, 101]", "[100]")):
        (tmp_path / "grid.toml").write_text(text.replace(old, new))
        code, _, err = call("sweep", tmp_path / "grid.toml", "--out", whole / "out")
        assert_one_sentence(code, err, ["[FEDAF-SWEEP-OTHER]", "--out"])


def test_a_second_process_is_refused(call, whole):
    with RunDirectory(whole / "out"):
        code, _, err = call("sweep", whole / "grid.toml", "--out", whole / "out")
    assert_one_sentence(code, err, ["[FEDAF-RUN-LOCKED]"])


def test_a_trial_that_fails_is_counted_and_the_others_are_run(call, tmp_path):
    rest = SEARCH.replace("trials = 4", "trials = 3").replace("seeds = [100, 101]", "")
    rest += 'federation.policy = { choices = ["default", "missing.toml"] }\n'
    grid_file(tmp_path, rest, fixed=HELD_OUT)
    code, out, err = call("sweep", "grid.toml", "--out", "out")
    failed = [trial["trial"] for trial in trials(tmp_path / "out") if not trial["last_accuracy"]]
    assert (code, err) == (1, "")
    assert failed
    assert len(failed) < 3
    assert "3 of 3 trials are done." in out
    assert {line.split()[0] for line in out.splitlines() if "failed:" in line and "missing.toml" in line} == {
        f"trial-000{number}-seed100" for number in failed
    }


def test_a_setting_that_no_run_can_have_is_refused_before_the_first_trial(call, tmp_path):
    grid_file(tmp_path, SEARCH, fixed=HELD_OUT.replace("clients = 2", "clients = 1000"))
    code, out, err = call("sweep", "grid.toml", "--out", "out")
    assert_one_sentence(code, err, ["1000 clients"])
    assert out == ""
    assert not (tmp_path / "out").exists()


def test_without_optuna_it_is_one_sentence(call, whole, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "optuna", None)  # importing it now fails
    code, _, err = call("sweep", whole / "grid.toml", "--out", "new")
    assert_one_sentence(code, err, ["[FEDAF-SWEEP-OPTUNA]", "pip install optuna"])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", [["--slurm"], ["--list"], ["--cell", "trial-0000-seed100"]])
def test_what_is_for_grids_is_refused(call, whole, option):
    code, _, err = call("sweep", whole / "grid.toml", *option)
    assert_one_sentence(code, err, ["[FEDAF-SWEEP-SEARCH]", option[0]])


def a_search(parameters: str, *, search: str = "trials = 1", fixed: str = "data.validation = 10") -> str:
    return f"{fixed}\n[search]\n{search}\n[search.parameters]\n{parameters}"


LR = "method.server_lr = { low = 0.1, high = 0.2 }"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (a_search(LR, fixed=""), ["SWEEP-SEARCH", "test set", "data.validation"]),
        (a_search(LR, fixed="data.validation = 10\nrun.seed = 1"), ["SWEEP-SEARCH", "run.seed", "search.seeds"]),
        (a_search(LR, fixed="data.validation = 10\ngrid.run.seed = [1]"), ["SWEEP-SEARCH", "[grid]", "[search]"]),
        (a_search(LR, fixed="against = 'a'\ndata.validation = 10"), ["SWEEP-GRID", "against"]),
        (a_search(LR, search=""), ["CONFIG-MISSING", "trials"]),
        (a_search(LR, search="trials = 0"), ["CONFIG-VALUE", "search.trials"]),
        (a_search(LR, search="trials = 1\nmetrik = 'loss'"), ["CONFIG-KEY", "metrik", "'metric'"]),
        (a_search(LR, search="trials = 1\nmetric = 'los'"), ["SWEEP-SEARCH", "'los'", "'loss'"]),
        (a_search(LR, search="trials = 1\nseeds = [1, 1]"), ["SWEEP-SEARCH", "search.seeds"]),
        (a_search(LR, search="trials = 1\nseeds = []"), ["CONFIG-VALUE", "search.seeds"]),
        (a_search(""), ["CONFIG-VALUE", "search.parameters"]),
        (a_search("method.server_lr = 0.1"), ["SWEEP-SEARCH", "method.server_lr", "low"]),
        (a_search("method.server_lr = { low = 0.1 }"), ["SWEEP-SEARCH", "method.server_lr", "high"]),
        (a_search("method.server_lr = { low = 0.2, high = 0.1 }"), ["SWEEP-SEARCH", "low below high"]),
        (a_search("method.server_lr = { low = 0.0, high = 0.1, log = true }"), ["SWEEP-SEARCH", "above 0"]),
        (a_search("method.server_lr = { low = -1.0, high = 0.1 }"), ["CONFIG-VALUE", "method.server_lr", "-1.0"]),
        (a_search("method.server_lr = { lo = 0.1, high = 0.2 }"), ["CONFIG-KEY", "method.server_lr.lo", "'low'"]),
        (a_search("method.ipc = { low = 1, high = 5, step = 0.5 }"), ["SWEEP-SEARCH", "step", "whole"]),
        (a_search("method.ipc = { choices = [1, 2], low = 1 }"), ["SWEEP-SEARCH", "choices", "low"]),
        (a_search("method.ipc = { choices = ['few'] }"), ["CONFIG-VALUE", "method.ipc", "few"]),
        (a_search("method.server_l = { low = 0.1, high = 0.2 }"), ["CONFIG-KEY", "method.server_l"]),
        (a_search("lr = { low = 0.1, high = 0.2 }"), ["SWEEP-SEARCH", "lr"]),
        (a_search("partition.alpha = { low = 0.1, high = 0.2 }"), ["SWEEP-SEARCH", "partition.alpha", "learned"]),
        (a_search("method.name = { choices = ['fedaf'] }"), ["SWEEP-SEARCH", "method.name"]),
        (a_search(LR, fixed="data.validation = 10\nmethod.server_lr = 0.1"), ["SWEEP-SEARCH", "method.server_lr"]),
    ],
)
def test_a_mistake_is_one_sentence(text, words):
    with pytest.raises(UserError) as caught:
        Search.read(tomllib.loads(text))
    said = caught.value.labelled
    assert "\n" not in said
    assert [word for word in words if word not in said] == []
