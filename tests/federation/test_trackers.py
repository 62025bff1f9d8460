"""Trackers, really written and read back: every round once, also when a run was killed and resumed."""

import json
import logging
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import mlflow
import pytest

import fedaf
from fedaf.config import build
from fedaf.federation.checkpoint import LATEST
from fedaf.federation.trackers import registry
from fedaf.federation.trackers.registry import TRACKERS
from support import ROOT, TESTS, tracked
from support.errors import raises
from support.observers import Stopping
from support.plugins import activate, install
from support.small import SMALL, SMALL_FEDAF

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow and W&B import

FEDAF = {**SMALL, "clients": 3, "method": "fedaf", **SMALL_FEDAF, "local_steps": 3, "server_epochs": 1}
TALLY = {**SMALL, "method": "support.tally:Tally"}
MOMENTS = [
    "before sending",
    *(
        pytest.param(moment, marks=pytest.mark.slow)
        for moment in (
            "before the checkpoint",
            "within a record",
            "between trackers",
            "after sending",
            "before closing",
        )
    ),
]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database of MLflow, whose creation takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def _environment(database, tmp_path, monkeypatch):
    """MLflow's database of this file, an experiment of this test, and W&B without a network."""
    monkeypatch.chdir(tmp_path)  # where MLflow and W&B keep files
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true")):
        monkeypatch.setenv(name, value)


def sorted_by_name(numbers: tracked.Numbers) -> tracked.Numbers:
    return dict(sorted(numbers.items()))


def test_tensorboard_and_mlflow_get_settings_numbers_images_and_status(tmp_path):
    out = tmp_path / "run"
    fedaf.run(**FEDAF, out=out, track="tensorboard,mlflow")
    expected = tracked.expected(out)
    assert {"accuracy", "round", "seconds", "upload_bytes", "client_spread.lowest"} <= expected.keys()
    assert expected["round"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    pictures = {file.stem: file.read_bytes() for file in (out / "condensed").glob("*.png")}
    assert len(pictures) == 3

    assert tracked.scalars(out) == sorted_by_name(tracked.as_float32(expected))
    assert tracked.status(out) == ["finished"]
    (settings,) = tracked.texts(out, "settings")
    assert "| method.ipc | 5 |" in settings.splitlines()
    assert f"| fedaf | {fedaf.__version__} |" in settings.splitlines()
    shown = tracked.tensorboard(out)
    for client, png in pictures.items():
        images = shown.Images(f"condensed/{client}")
        assert [image.step for image in images] == [1, 2, 3]
        assert images[-1].encoded_image_string == png

    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert (run.status, run.name) == ("FINISHED", "fedaf on digits, seed 0")
    assert run.numbers == sorted_by_name(expected)
    assert run.params["method.ipc"] == "5"
    assert run.params["data.name"] == "digits"
    assert run.tags["version.fedaf"] == fedaf.__version__
    last = {path.removeprefix("round-3/"): png for path, png in run.images().items() if path.startswith("round-3/")}
    assert last == {f"{client}.png": png for client, png in pictures.items()}
    assert json.loads((out / "round-3" / "state.json").read_text())["run"] == run.tags["fedaf.run"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_and_resumed_run_has_every_round_once(moment, tmp_path):
    out = tmp_path / "run"
    settings = {**FEDAF, "track": ["tensorboard", "mlflow"]}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{TESTS}"}
    program = [sys.executable, TESTS / "support" / "track_and_die.py", out, json.dumps(settings), moment]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    fedaf.resume(out)  # with the trackers of its config.toml
    expected = tracked.expected(out)
    assert expected["round"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert tracked.scalars(out) == sorted_by_name(tracked.as_float32(expected))
    assert tracked.records(out) == [1, 2, 3]
    assert tracked.status(out) == ["finished"]
    assert [image.step for image in tracked.tensorboard(out).Images("condensed/client-0")] == [1, 2, 3]
    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert run.status == "FINISHED"
    assert run.numbers == sorted_by_name(expected)
    assert {path.partition("/")[0] for path in run.images()} == {"round-1", "round-2", "round-3"}


def test_a_tracker_forgets_rounds_after_the_checkpoint_or_keeps_them_once(tmp_path):
    """A run directory from a backup: the tracker has rounds that the run has not."""
    out = tmp_path / "run"
    settings = {**SMALL["settings"], "run.keep_checkpoints": 0}
    fedaf.run(**{**TALLY, "settings": settings}, out=out, track="mlflow,tensorboard")
    (out / LATEST).write_text("round-1")
    (out / "result.json").unlink()
    fedaf.resume(out)
    assert tracked.scalars(out) == sorted_by_name(tracked.as_float32(tracked.expected(out)))
    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert run.numbers["round"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert tracked.without_times(run.numbers) == tracked.without_times(sorted_by_name(tracked.expected(out)))


def test_a_finished_run_can_be_sent_to_a_tracker_later(tmp_path):
    out = tmp_path / "run"
    fedaf.run(**FEDAF, out=out)
    assert not (out / "tensorboard").exists()
    before = (out / "metrics.jsonl").read_bytes()
    for _ in range(2):
        fedaf.resume(out, track=["tensorboard", "mlflow"])
    assert (out / "metrics.jsonl").read_bytes() == before
    assert tracked.scalars(out) == sorted_by_name(tracked.as_float32(tracked.expected(out)))
    assert [image.step for image in tracked.tensorboard(out).Images("condensed/client-0")] == [3]  # older ones are gone
    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert run.numbers == sorted_by_name(tracked.expected(out))


def test_an_extended_run_continues_and_a_stopped_one_says_so(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(fedaf.StopRun):
        fedaf.run(**{**TALLY, "rounds": 2}, out=out, track=["tensorboard", "mlflow"], observer=Stopping())
    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert (run.status, run.numbers["round"]) == ("KILLED", [(1, 1.0)])
    fedaf.resume(out, rounds=4)
    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert run.status == "FINISHED"
    assert [step for step, _ in run.numbers["round"]] == [1, 2, 3, 4]
    assert tracked.records(out) == [1, 2, 3, 4]
    assert tracked.status(out) == ["interrupted", "finished"]


def test_a_tracker_that_fails_is_caught_up_by_the_next_resume(tmp_path, monkeypatch, caplog):
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("the server is gone")

    out = tmp_path / "run"
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING):
        broken.setattr(mlflow.MlflowClient, "log_batch", fail)
        fedaf.run(**TALLY, out=out, track=["mlflow", "tensorboard"])
    (warning,) = caplog.records
    assert "MlflowTracker" in warning.getMessage()
    assert "ConnectionError: the server is gone" in warning.getMessage()
    assert tracked.records(out) == [1, 2, 3]
    fedaf.resume(out)
    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert run.numbers == sorted_by_name(tracked.expected(out))
    assert run.params["run.rounds"] == "3"
    assert tracked.records(out) == [1, 2, 3]


def test_wandb_offline_has_every_round_once_also_after_a_resume(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(fedaf.StopRun):
        fedaf.run(**TALLY, out=out, track="wandb", observer=Stopping())
    (first,) = (tmp_path / "wandb").glob("offline-run-*")
    assert tracked.wandb_numbers(first) == sorted_by_name(tracked.expected(out))
    fedaf.resume(out)
    (second,) = {*(tmp_path / "wandb").glob("offline-run-*")} - {first}
    found = tracked.wandb_numbers(second)
    assert found == sorted_by_name(tracked.expected(out))
    assert found["round"] == [(1, 1.0), (2, 2.0), (3, 3.0)]
    assert first.name.rpartition("-")[2] == second.name.rpartition("-")[2]  # the id of the run


def test_with_differential_privacy_a_tracker_gets_nothing_that_the_run_directory_has_not(tmp_path):
    out = tmp_path / "run"
    options = {"ipc": 5, "local_steps": 3, "server_epochs": 1, "epsilon": 8.0, "method": "fedaf"}
    fedaf.run(
        **{**SMALL, "rounds": 1, "clients": 2, "alpha": 10.0}, **options, out=out, track=["tensorboard", "mlflow"]
    )
    assert json.loads((out / "result.json").read_text())["privacy"]["epsilon"] == 8
    (run,) = tracked.mlflow_runs(tmp_path.name)
    assert run.numbers == sorted_by_name(tracked.expected(out))
    assert tracked.scalars(out) == sorted_by_name(tracked.as_float32(tracked.expected(out)))
    assert not [name for name in run.numbers if name.startswith(("copy_audit", "disclosure", "personal"))]
    shared = {file.name: file.read_bytes() for file in (out / "condensed").glob("*.png")}
    assert {path.removeprefix("round-1/"): png for path, png in run.images().items()} == shared
    assert run.params == {name: str(value) for name, value in build_of(out).flat.items()}
    assert run.tags.keys() <= {"fedaf.run", "version.fedaf", "version.torch", "version.python", "mlflow.runName"}


def build_of(run: Path):
    return build(tomllib.loads((run / "config.toml").read_text()))


def test_a_long_run_shows_the_images_of_about_ten_rounds(tmp_path):
    from fedaf.federation.trackers.tracker import Tracker

    class Kept(Tracker):
        def __init__(self) -> None:
            self.rounds: list[tuple[int, bool]] = []

        def open(self, info):
            return ()

        def send(self, round, numbers, images):
            self.rounds.append((round, bool(images)))

    kept = Kept()
    kept.described(fedaf.RunInfo("run", "t", tmp_path, {}, {}, rounds=50))
    for round in range(1, 51):
        kept.images_shared(round, {"client-0": tmp_path})
        kept.round_ended({"round": round, "accuracy": None})
    assert [round for round, shown in kept.rounds if shown] == [1, *range(5, 51, 5)]
    assert len(kept.rounds) == 50


@pytest.mark.parametrize("name", TRACKERS.names)
def test_a_missing_package_is_one_sentence_before_anything_is_computed(name, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "find_spec", lambda module: None)
    with raises("FEDAF-TRACKER-NOT-INSTALLED") as refused:
        fedaf.run(**{**TALLY, "dataset": "cifar10"}, out=tmp_path / "run", track=name)  # its data are not here
    assert f"pip install '.[{name}]'" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_every_built_in_tracker_has_an_extra_and_a_short_adapter():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, path in TRACKERS.builtin.items():
        assert name in extras
        file = ROOT / "src" / (path.partition(":")[0].replace(".", "/") + ".py")
        assert len(file.read_text().splitlines()) <= 50, name


def test_mistakes_in_the_name_of_a_tracker_are_refused(tmp_path):
    for name, code in (
        ("tensorbord", "FEDAF-TRACKER-UNKNOWN"),
        ("support.observers:Needy", "FEDAF-TRACKER-TYPE"),
        ("support.small:Rounds", "FEDAF-TRACKER-TYPE"),
        ("support.observers:Nothing", "FEDAF-CUSTOM-LOAD"),
        ("no_such_module:Tracker", "FEDAF-CUSTOM-LOAD"),
    ):
        with raises(code):
            fedaf.run(**TALLY, out=tmp_path / "run", track=name)
    with raises("FEDAF-CONFIG-VALUE"):
        fedaf.run(**TALLY, track=5)
    with raises("FEDAF-TRACKER-NO-DIRECTORY"):
        fedaf.run(**TALLY, track="tensorboard")
    with raises("FEDAF-TRACKER-NO-DIRECTORY"):
        fedaf.compare(**SMALL, methods=["fedavg"], track="tensorboard")
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_cannot_be_made_costs_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        assert len(fedaf.run(**TALLY, track="support.observers:Unready").curve) == 3
    (warning,) = caplog.records
    assert (
        "support.observers:Unready is dropped: its constructor raised RuntimeError: no licence" in warning.getMessage()
    )


def test_an_installed_package_adds_a_tracker(tmp_path, monkeypatch):
    install(tmp_path / "site", "fedaf.observers", {"diary": "support.observers:Diary"})
    activate(tmp_path / "site", monkeypatch, TRACKERS)
    fedaf.run(**TALLY, out=tmp_path / "run", track="diary")
    assert (tmp_path / "run" / "diary.txt").read_text().splitlines()[-1] == "finished"


def test_trackers_are_no_part_of_what_a_run_is():
    from fedaf.reproduce.archive import identity

    plain, followed = build({}), build({"run": {"track": ["mlflow", "a:B"]}})
    assert identity(plain) == identity(followed)
    assert followed.untracked().to_toml() == plain.to_toml()
    assert build({"run": {"track": "mlflow, wandb,mlflow"}}).run.track == ["mlflow", "wandb"]
