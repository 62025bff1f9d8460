"""``fedaf demo``: the comparison that a new user sees first, and the folders that it leaves alone."""

import json
import os
from pathlib import Path

import pytest

from fedaf import config as configuration
from fedaf.cli import demo
from fedaf.runs.comparison import Plan, planned
from support.commandline import assert_one_sentence


@pytest.fixture
def small(monkeypatch):
    """The demo with two fast methods on three clients, of a narrow model."""
    monkeypatch.setattr(demo, "_METHODS", ("fedavg", "local"))
    few = {"partition": {"alpha": 0.5, "clients": 3}, "model": {"width": 8}, "method": {"local_epochs": 1}}
    monkeypatch.setattr(demo, "_SETTINGS", demo._SETTINGS | few)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_demo_is_the_comparison_that_the_readme_describes(monkeypatch, tmp_path):
    started = {}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "start", lambda out, plan, terminal: started.update({out: plan}) or out.mkdir())
    (tmp_path / "runs").mkdir()
    demo.demo()
    names = ["fedaf-plus", "fedaf", "fedavg", "pooled", "local"]
    flags = configuration.from_flags(dataset="digits", alpha=0.02, clients=10, rounds=8)
    assert started == {Path("runs/demo"): Plan(planned(names, flags))}


def test_it_says_what_it_does_and_what_to_look_at_and_replaces_its_own_results(call, small, tmp_path):
    code, out, err = call("demo", "--rounds", "2")
    assert (code, err) == (0, "")
    assert out.startswith("Ten clients")
    for name in ("runs/demo/report.html", "comparison.csv", "fedaf run --dataset"):
        assert name in out
    folder = tmp_path / "runs" / "demo"
    assert (folder / "fedavg" / "round-2").is_dir()
    assert set(json.loads((folder / "demo.json").read_text())["files"]) == files(folder).keys()
    code, out, err = call("demo", "--rounds", "1", "-q")
    assert (code, err) == (0, "")
    assert "Ten clients" not in out
    assert json.loads((folder / "local" / "result.json").read_text())["rounds"] == 1
    assert not (folder / "fedavg" / "round-2").exists()


def recorded(folder: Path, *names: str) -> None:
    """A folder that a demo with these files would have left."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    demo._record(folder)


@pytest.mark.parametrize("name", ["notes.txt", "fedaf/round-100/state.json", ".hidden"])
def test_a_file_that_the_demo_did_not_write_keeps_the_whole_folder(call, tmp_path, name):
    recorded(tmp_path / "d", "curves.png", "fedaf/result.json")
    (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "d" / name).write_text("mine")
    before = files(tmp_path)
    code, out, err = call("demo", "--out", "d")
    assert_one_sentence(code, err, ["[FEDAF-CLI-DEMO]", name, "--out"])
    assert out == ""
    assert files(tmp_path) == before


@pytest.mark.parametrize("record", [None, "", "[]", "{}", '{"files": 3}'])
def test_a_folder_without_a_readable_record_is_kept(call, tmp_path, record):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "comparison.json").write_text("{}")
    if record is not None:
        (tmp_path / "d" / "demo.json").write_text(record)
    before = files(tmp_path)
    code, _, err = call("demo", "--out", "d")
    assert_one_sentence(code, err, ["[FEDAF-CLI-DEMO]", "d is not empty"])
    assert files(tmp_path) == before


def test_a_record_that_names_files_elsewhere_deletes_none_of_them(tmp_path):
    (tmp_path / "mine").write_text("mine")
    recorded(tmp_path / "d", "curves.png")
    (tmp_path / "d" / "demo.json").write_text(json.dumps({"files": ["curves.png", "demo.json", "../mine"]}))
    demo._clear(tmp_path / "d")
    assert list((tmp_path / "d").iterdir()) == []
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_link_is_removed_and_what_it_leads_to_is_kept(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.png").write_text("mine")
    (tmp_path / "d").mkdir()
    os.symlink(tmp_path / "photos", tmp_path / "d" / "link")
    recorded(tmp_path / "d", "curves.png")
    demo._clear(tmp_path / "d")
    assert not (tmp_path / "d" / "link").is_symlink()
    assert (tmp_path / "photos" / "one.png").read_text() == "mine"


def test_after_ctrl_c_the_demo_can_be_repeated(call, small, monkeypatch, tmp_path):
    def stopped(folder, plan, terminal):
        (folder / "fedavg").mkdir(parents=True)
        (folder / "comparison.json").write_text("{}")
        raise demo.Stopped("fedaf compare --resume d")

    with monkeypatch.context() as patch:
        patch.setattr(demo, "start", stopped)
        code, _, err = call("demo", "--out", "d")
        assert (code, err) == (130, "fedaf: stopped; continue with: fedaf compare --resume d\n")
    assert call("demo", "--out", "d", "--rounds", "1")[0] == 0


def test_wrong_places_and_rounds_are_refused_in_one_sentence(call, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, out, err = call("demo", "--out", "file")
    assert out == ""
    assert_one_sentence(code, err, ["[FEDAF-RUN-NOT-A-DIRECTORY]", "file"])
    code, _, err = call("demo", "--rounds", "0")
    assert_one_sentence(code, err, ["[FEDAF-CLI-USAGE]", "--rounds"])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
