"""``fedaf condense``, ``fedaf export --condensed`` and training on the result, as a user types them."""

import re
import shlex
from pathlib import Path

import pytest

import fedaf
from support.commandline import TINY, assert_one_sentence
from support.small import SMALL, SMALL_FEDAF

CONDENSE = ["condense", "digits", *TINY[2:]]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("condensed") / "run"
    fedaf.run(**{**SMALL, "rounds": 1}, method="fedaf", **SMALL_FEDAF, out=out)
    return out


def test_condense_prints_the_accuracy_and_its_settings_train_again(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(*CONDENSE, "--out", "set")
    assert status == 0, err
    printed = re.search(r"50 condensed images; a fresh model trained on them has accuracy ([\d.]+) %", out)
    assert printed, out
    monkeypatch.chdir(tmp_path / "set")
    status, out, err = call("run", "condensed-train.toml", "-q", "--out", "again")
    assert status == 0, err
    assert printed[1] in out
    monkeypatch.chdir(tmp_path)
    status, _, err = call(*CONDENSE, "--out", "set")
    assert_one_sentence(status, err, ["set is not empty"])


def test_the_command_that_export_prints_trains_on_the_set(call, run, tmp_path):
    file = tmp_path / "mine.parquet"
    status, out, err = call("export", run, "--condensed", "--out", file)
    assert status == 0, err
    assert {path.name for path in tmp_path.glob("mine*")} == {"mine.parquet", "mine-card.md", "mine-train.toml"}
    line = re.search(r"Train on it with: fedaf (.+)", out)
    assert line, out
    status, out, err = call(*shlex.split(line[1]), "-q", "--out", tmp_path / "trained")
    assert status == 0, err
    assert "pooled" in out


def test_a_set_without_a_test_split_can_be_looked_at(call, run, tmp_path):
    assert call("export", run, "--condensed", "--out", tmp_path / "set.npz")[0] == 0
    status, out, err = call("data", "inspect", f"npz:{tmp_path / 'set.npz'}")
    assert status == 0, err
    assert "Images: 1 x 8 x 8" in out


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("export RUN --condensed --format torch", "EXPORT-FORMAT", ["npz", "parquet"]),
        ("export RUN --format npz", "EXPORT-FORMAT", ["--condensed"]),
        ("export RUN --condensed --which last", "EXPORT-CONDENSED", ["--which"]),
        ("export RUN --condensed --client client-0", "EXPORT-CONDENSED", ["--client"]),
        ("export RUN --condensed --out nowhere/set.npz", "CLI-FILE", ["nowhere"]),
        ("export nothing --condensed", "RUN-NOT-FOUND", ["nothing"]),
        ("run --dataset npz:SET", "DATA-NO-TEST", ["--test-dataset"]),
        ("run --dataset npz:SET --test-dataset npz:nothing.npz", "DATA-NOT-FOUND", ["nothing.npz"]),
    ],
)
def test_a_mistake_is_one_sentence(call, run, tmp_path, line, code, words):
    if "SET" in line:
        assert call("export", run, "--condensed", "--out", tmp_path / "set.npz")[0] == 0
    given = line.replace("RUN", str(run)).replace("SET", str(tmp_path / "set.npz"))
    status, _, err = call(*shlex.split(given))
    assert_one_sentence(status, err, [f"[FEDAF-{code}]", *words])
