"""A run killed at any moment and resumed is the run that was never killed, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fedaf
from fedaf.federation.events import EventReader
from support import TESTS
from support.ctrl_c import heeding_ctrl_c
from support.errors import raises
from support.small import SMALL, SMALL_FEDAF, SMALL_PLUS, final_tensors

FEDAF = {**SMALL, **SMALL_FEDAF, "method": "fedaf"}
PLUS = {**SMALL, **SMALL_PLUS, "method": "fedaf-plus"}
FEDAVG = {**SMALL, "method": "fedavg", "local_epochs": 1}
TALLY = {**SMALL, "method": "support.tally:Tally"}
FEDDYN, FEDBN, MOON, FEDGEN = (
    {**SMALL, "method": name, "local_epochs": 1} for name in ("feddyn", "fedbn", "moon", "fedgen")
)
SCAFFOLD, FEDNOVA, FEDAVGM, FEDADAM, FEDYOGI = (
    {**SMALL, "method": name, "local_epochs": 1} for name in ("scaffold", "fednova", "fedavgm", "fedadam", "fedyogi")
)
COSINE_FEDAVG = {**FEDAVG, "lr_schedule": "cosine", "weight_decay": 0.01}
CHOSEN = {**FEDAVG, "lr": 1.0, "settings": {**SMALL["settings"], "data.selection": 200}}
SOME_FEDAF = {**FEDAF, "participation": 0.5}
SOME_PLUS = {**PLUS, "participation": 0.5}
SOME_TALLY = {**TALLY, "participation": 0.5}
SOME_FEDDYN = {**FEDDYN, "participation": 0.5}
SOME_SCAFFOLD = {**SCAFFOLD, "participation": 0.5}
SOME_MOON = {**MOON, "participation": 0.5}

#: By default one of each kind; the others are slow.
BY_DEFAULT = [
    (FEDAF, "condense"),
    (FEDAF, "server"),
    (FEDAF, "after index.json"),
    (PLUS, "condense"),
    (PLUS, "server"),
    (TALLY, "after clients.safetensors"),
    (FEDBN, "evaluate"),
    (SOME_TALLY, "count"),
    (TALLY, "after metrics"),
    (TALLY, "after LATEST"),
    (SOME_SCAFFOLD, "fit"),
    (COSINE_FEDAVG, "fit"),
    (CHOSEN, "after LATEST"),
    (CHOSEN, "after best.safetensors"),
    (CHOSEN, "after model.json"),
]
SLOW = [
    (CHOSEN, "after metrics"),
    (CHOSEN, "after last.safetensors"),
    (FEDAF, "knowledge"),
    (FEDAF, "after metrics"),
    (FEDAF, "after clients.safetensors"),
    (FEDAF, "after LATEST"),
    (PLUS, "after metrics"),
    (PLUS, "after clients.safetensors"),
    (SOME_PLUS, "condense"),
    (FEDAVG, "fit"),
    (TALLY, "count"),
    (SOME_FEDAF, "condense"),
    (FEDDYN, "count"),
    (FEDDYN, "after metrics"),
    (SOME_FEDDYN, "fit"),
    (FEDBN, "fit"),
    (FEDBN, "after clients.safetensors"),
    (SOME_MOON, "fit"),
    (MOON, "after LATEST"),
    (FEDGEN, "server"),
    (SCAFFOLD, "after clients.safetensors"),
    (FEDNOVA, "fit"),
    (FEDAVGM, "after metrics"),
    (FEDADAM, "fit"),
    (FEDYOGI, "after LATEST"),
]


def _named(settings: dict, moment: str) -> str:
    return f"{settings['method']} {settings.get('lr_schedule', settings.get('participation', 1))} {moment}"


MOMENTS = [
    pytest.param(settings, moment, id=_named(settings, moment), marks=marks)
    for moments, marks in ((BY_DEFAULT, ()), (SLOW, pytest.mark.slow))
    for settings, moment in moments
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The directory of a run of each method that nothing happened to."""
    made: dict[str, Path] = {}

    def make(settings: dict) -> Path:
        name = json.dumps(settings)
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole") / "run"
            fedaf.run(**settings, out=made[name])
        return made[name]

    return make


def killed(settings: dict, out: Path, moment: str, round: int) -> None:
    command = [
        sys.executable,
        str(TESTS / "support" / "run_and_die.py"),
        str(out),
        json.dumps(settings),
        moment,
        str(round),
    ]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": paths}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def logged(out: Path) -> list[dict]:
    """What the metrics of a run say, but for how long it took."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def kept_models(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "model").iterdir()}


def shared_images(out: Path) -> dict[str, bytes]:
    """The pictures of the newest images and of the gallery."""
    return {str(path.relative_to(out)): path.read_bytes() for path in (out / "condensed").rglob("*.png")}


def resumed(out: Path) -> fedaf.RunResult:
    return fedaf.resume(out)


@pytest.mark.parametrize(("settings", "moment"), MOMENTS)
def test_a_killed_and_resumed_run_equals_the_run_never_killed(settings, moment, undisturbed, tmp_path):
    whole = undisturbed(settings)
    out = tmp_path / "run"
    killed(settings, out, moment, round=2)
    assert not (out / "result.json").exists()
    result = resumed(out)
    expected, found = final_tensors(whole), final_tensors(out)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    assert result.curve == json.loads((whole / "result.json").read_text())["curve"]
    assert logged(out) == logged(whole)
    assert kept_models(out) == kept_models(whole)
    assert shared_images(out) == shared_images(whole)
    assert [line["round"] for line in logged(out)] == [1, 2, 3]
    events = EventReader(out).read()
    for name in ("round_started", "round_ended"):
        rounds = [event.get("round") or event["metrics"]["round"] for event in events if event["event"] == name]
        assert rounds == [1, 2, 3], name
    assert [event["event"] for event in events if event["event"] in ("started", "ended")] == ["started"] * 2 + ["ended"]


@pytest.mark.parametrize("moment", ["count", "after metrics"])
def test_a_run_killed_before_its_first_round_ends_can_be_resumed(moment, undisturbed, tmp_path):
    out = tmp_path / "run"
    killed(TALLY, out, moment, round=1)
    assert resumed(out).curve == json.loads((undisturbed(TALLY) / "result.json").read_text())["curve"]
    assert logged(out) == logged(undisturbed(TALLY))


@pytest.mark.parametrize("moment", ["after config.toml", "after partition.json"])
def test_a_run_killed_before_its_first_checkpoint_starts_when_resumed(moment, undisturbed, tmp_path):
    out = tmp_path / "run"
    killed(TALLY, out, moment, round=0)
    assert not (out / "LATEST").exists()
    assert resumed(out).curve == json.loads((undisturbed(TALLY) / "result.json").read_text())["curve"]


def test_a_finished_run_is_resumed_to_the_same_result(undisturbed):
    out = undisturbed(TALLY)
    before = json.loads((out / "result.json").read_text())["curve"]
    assert resumed(out).curve == before


def test_a_torn_last_line_of_metrics_is_forgotten(tmp_path):
    out = tmp_path / "run"
    fedaf.run(**TALLY, out=out)
    (out / "LATEST").write_text("round-2")
    for name in ("metrics.jsonl", "events.jsonl"):
        with open(out / name, "a") as file:
            file.write('{"round": 3, "accur')
    resumed(out)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == 3
    ended = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["metrics"]["round"] for event in ended if event["event"] == "round_ended"] == [1, 2, 3]


def test_two_processes_cannot_work_in_one_directory(tmp_path):
    out = tmp_path / "run"
    fedaf.run(**{**TALLY, "rounds": 1}, out=out)
    from fedaf.federation.run_directory import RunDirectory

    holder = RunDirectory(out)
    try:
        with raises("FEDAF-RUN-LOCKED"):
            resumed(out)
    finally:
        holder.close()


def test_ctrl_c_exits_130_and_the_run_goes_on_to_the_same_numbers(undisturbed, tmp_path):
    flags = ["--clients", "4", "--alpha", "0.1", "--rounds", "3", "--device", "cpu"]
    settings = {"model.width": 16, "run.threads": 1, **{f"method.{k}": v for k, v in SMALL_FEDAF.items()}}
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
    fedaf_run = [sys.executable, "-m", "fedaf", "run"]
    out = tmp_path / "run"
    line = [*fedaf_run, *flags, *sets, "--out", str(out)]
    with heeding_ctrl_c():
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(b"round 1/3"):
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert b"--resume" in errors
    assert resumed(out).curve == json.loads((undisturbed(FEDAF) / "result.json").read_text())["curve"]


@pytest.mark.parametrize("moment", ["condense", "after metrics"])
def test_a_killed_run_has_disclosed_what_a_run_never_killed_has(moment, tmp_path):
    """A policy that permits two rounds' images of the largest classes, and one round's of others."""
    (tmp_path / "policy.toml").write_text("max_total_images_per_sample = 0.07\nmin_local_steps = 1\nmin_samples = 5\n")
    settings = {**SMALL["settings"], "federation.policy": str(tmp_path / "policy.toml")}
    limited = {**FEDAF, "settings": settings, "min_samples": 10}
    fedaf.run(**limited, out=tmp_path / "whole")
    killed(limited, tmp_path / "run", moment, round=2)
    resumed(tmp_path / "run")
    whole, found = (json.loads((tmp_path / out / "result.json").read_text())["disclosed"] for out in ("whole", "run"))
    assert found == whole
    assert {n for client in whole["clients"].values() for n in client["images"].values()} == {5, 10}
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")
