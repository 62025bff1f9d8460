"""A private run that is killed and resumed: the same numbers, no release without an entry, and no release twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedaf
from support import TESTS
from support.private import entries, flat, private_tables
from support.small import final_tensors

SIMULATED = {"simulate_seed": 5, "releases": 2}
FEDDM: dict[str, Any] = {"settings": flat(private_tables("feddm", SIMULATED, rounds=3))}
FEDAF: dict[str, Any] = {"settings": flat(private_tables("fedaf", {**SIMULATED, "knowledge_share": 0.3}, rounds=3))}
RELEASES = 2

#: What is killed, when, and the releases that were paid for and lost: a client pays before it draws noise.
MOMENTS = [
    (FEDDM, "condense", 1, 0),  # while features are computed, before the first release is paid for
    (FEDDM, "after ledger.json", 1, 1),
    (FEDDM, "after release", 1, 0),
    (FEDDM, "after release", 2, 0),
    (FEDDM, "after metrics", 1, 0),
    (FEDDM, "condense", 3, 0),  # no release is due
    (FEDAF, "after ledger.json", 2, 1),
    (FEDAF, "condense", 2, 0),  # the release was made in the phase before
    (FEDAF, "after LATEST", 2, 0),
]


def killed(given: dict[str, Any], out: Path, moment: str, round: int) -> None:
    script = str(TESTS / "support" / "run_and_die.py")
    command = [sys.executable, script, str(out), json.dumps(given), moment, str(round)]
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, check=False, env={**os.environ, "PYTHONPATH": paths}, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr


def assert_paid(out: Path) -> int:
    """Every stored release has an entry; return the number of entries of all clients."""
    found = entries(out / "privacy")
    for client, of_client in found.items():
        stored = {file.stem for file in (out / "privacy" / client / "releases").glob("*.safetensors")}
        assert stored <= {entry.release for entry in of_client}
    return sum(map(len, found.values()))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    made: dict[str, Path] = {}

    def make(given: dict[str, Any]) -> Path:
        name = json.dumps(given)
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole") / "run"
            fedaf.run(**given, out=made[name])
        return made[name]

    return make


@pytest.mark.parametrize(
    ("given", "moment", "round", "lost"),
    MOMENTS,
    ids=[f"{given['settings']['method.name']} {moment} {round}" for given, moment, round, _ in MOMENTS],
)
def test_a_killed_and_resumed_private_run_equals_the_run_never_killed(
    given, moment, round, lost, undisturbed, tmp_path
):
    whole, out = undisturbed(given), tmp_path / "run"
    killed(given, out, moment, round)
    assert assert_paid(out) >= (1 if "condense" not in moment or round > 1 else 0)
    fedaf.resume(out)
    expected, found = final_tensors(whole), final_tensors(out)
    assert expected.keys() == found.keys()
    assert [name for name in expected if not torch.equal(expected[name], found[name])] == []
    curves = [json.loads((run / "result.json").read_text())["curve"] for run in (whole, out)]
    assert curves[0] == curves[1]
    assert assert_paid(whole) == 2 * RELEASES
    assert assert_paid(out) == 2 * RELEASES + lost


def test_a_resumed_run_uses_the_noise_that_was_drawn_before_the_kill(tmp_path):
    """With noise of the operating system, which cannot be drawn again."""
    out = tmp_path / "run"
    killed({"settings": flat(private_tables("feddm"))}, out, "after release", 1)
    made = {file: file.read_bytes() for file in (out / "privacy").rglob("*.safetensors")}
    assert len(made) == 1  # the first client's
    fedaf.resume(out)
    assert {file: file.read_bytes() for file in made} == made
    assert [len(of_client) for of_client in entries(out / "privacy").values()] == [1, 1]


def test_a_finished_private_run_is_resumed_for_nothing(undisturbed):
    out = undisturbed(FEDDM)
    files = {file: file.read_bytes() for file in (out / "privacy").rglob("*") if file.is_file()}
    fedaf.resume(out)
    assert {file: file.read_bytes() for file in (out / "privacy").rglob("*") if file.is_file()} == files
