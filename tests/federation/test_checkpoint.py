"""Checkpoints are compared with their manifest, and a run continues from the newest intact one with equal numbers."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

import fedaf
from support.errors import raises
from support.small import SMALL

TALLY = {**SMALL, "method": "support.tally:Tally"}
FILES = ["model.safetensors", "server.safetensors", "clients.safetensors", "state.json", "manifest.json"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    fedaf.run(**TALLY, out=out)
    return out


@pytest.fixture
def run(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def state_of(out: Path) -> dict[str, bytes]:
    """The last checkpoint and the metrics without the seconds, which differ between runs."""
    newest = out / (out / "LATEST").read_text()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    kept = [{name: value for name, value in line.items() if name != "seconds"} for line in lines]
    return {"metrics": json.dumps(kept).encode(), **{f.name: f.read_bytes() for f in newest.iterdir()}}


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_the_manifest_has_the_sha256_of_every_other_file(finished):
    newest = finished / "round-3"
    manifest = json.loads((newest / "manifest.json").read_text())
    others = {path.name: path.read_bytes() for path in newest.iterdir() if path.name != "manifest.json"}
    assert manifest == {"round": 3, "sha256": {n: hashlib.sha256(content).hexdigest() for n, content in others.items()}}


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize(
    ("file", "damage"),
    [(file, damage) for file in FILES for damage in (flip_a_byte, empty, Path.unlink)][:-1],  # see the older version
)
def test_a_damaged_newest_checkpoint_costs_one_round_and_a_sentence(file, damage, run, caplog):
    before = state_of(run)
    damage(run / "round-3" / file)
    fedaf.resume(run)
    assert state_of(run) == before
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "round-3" in warning
    assert "continuing after round 2" in warning


def test_a_lost_latest_is_found_again_and_no_round_counts_twice(run):
    before = state_of(run)
    (run / "LATEST").unlink()
    result = fedaf.resume(run, rounds=4)
    assert result.figures["rounds"] == 4
    assert [line["round"] for line in result.rounds] == [1, 2, 3, 4]
    assert [json.loads(line)["round"] for line in (run / "metrics.jsonl").read_text().splitlines()] == [1, 2, 3, 4]
    assert json.loads(before["metrics"])[:3] == json.loads(state_of(run)["metrics"])[:3]


@pytest.mark.parametrize("content", ["", "round-99", "elsewhere", "\x00"])
def test_a_latest_that_names_no_checkpoint_is_replaced(content, run):
    before = state_of(run)
    (run / "LATEST").write_text(content)
    fedaf.resume(run)
    assert len(fedaf.resume(run).rounds) == 3
    assert (run / "round-3" / "model.safetensors").read_bytes() == before["model.safetensors"]


def test_a_checkpoint_of_an_older_version_has_no_manifest_and_is_read(run):
    before = state_of(run)
    for manifest in run.glob("round-*/manifest.json"):
        manifest.unlink()
    (run / "LATEST").write_text("round-2")
    fedaf.resume(run)
    assert state_of(run) == before


def test_a_run_whose_checkpoints_are_all_damaged_is_one_sentence_that_names_the_files(run):
    for newest in run.glob("round-*"):
        flip_a_byte(newest / "model.safetensors")
    with raises("FEDAF-RUN-NO-CHECKPOINT") as refusal:
        fedaf.resume(run)
    sentence = str(refusal.value)
    assert all(part in sentence for part in ("round-3: model.safetensors", "round-2: model.safetensors", "backup"))
