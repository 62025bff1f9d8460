"""Flags of other programs, extending and continuing runs, and what Ctrl-C prints."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fedaf
from fedaf.cli import options
from fedaf.cli import terminal as terminals
from fedaf.cli.main import main
from fedaf.config.synonyms import meant
from fedaf.federation.run_directory import check_new
from support.commandline import SMALL, TINY, assert_one_sentence
from support.ctrl_c import heeding_ctrl_c
from support.errors import raises

FEDAVG = {"method": "fedavg", "local_epochs": 1, "clients": 3, "alpha": 100.0, "device": "cpu"}
FEDAF = {"method": "fedaf", "ipc": 5, "local_steps": 2, "real_batch": 8, "server_epochs": 1, "clients": 3}
NARROW = {"model.width": 8, "run.threads": 1}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --lr 0.1", ["--set method.server_lr=…", "--set method.image_lr=…"]),
        ("run --method fedavg --lr 0.1", ["for fedavg use --set method.lr=…"]),
        ("run --method=moon --learning-rate 0.1", ["for moon use --set method.lr=…"]),
        ("run --epochs 3", ["--set method.server_epochs=…", "--local-steps …"]),
        ("run --method fedprox --local-epochs 3", ["--set method.local_epochs=…"]),
        ("run --method fedavg --batch-size 32", ["--set method.batch_size=…"]),
        ("run --batch-size 32", ["--set method.server_batch=…", "--set method.real_batch=…"]),
        ("compare --methods fedaf,fedavg --lr 0.1", ["method.lr", "method.server_lr", "method.image_lr"]),
        ("run --gpu 0", ["--device …", "cuda:N"]),
        ("run --workers 4", ["--set run.clients_at_once=…"]),
        ("run --output x", ["use --out"]),
        ("compare --output-dir x", ["use --out"]),
        ("run --classes 10", ["--set data.classes=…", "over a network"]),
        ("run --num-clients 5", ["--clients …"]),
        ("run --dirichlet-alpha 5", ["--alpha …"]),
        ("run --algorithm fedavg", ["--method …"]),
        ("run --gamma 0.5", ["--set method.gamma=…"]),
        ("run --method fedprox --mu 0.5", ["--set method.mu=…"]),
    ],
)
def test_a_flag_of_another_program_suggests_the_setting_it_means_for_the_method(call, line, words):
    code, _, err = call(*shlex.split(line))
    assert_one_sentence(code, err, ["[FEDAF-CLI-USAGE]", *words])


def test_only_settings_that_a_method_has_are_suggested():
    assert list(meant("--lr", ["fedavg"])) == ["method.lr"]
    assert list(meant("lr", ["fedaf"])) == ["method.server_lr", "method.image_lr"]
    assert meant("nonsense", ["fedaf"]) == {}
    with raises("FEDAF-CONFIG-KEY") as error:
        fedaf.run(method="fedaf", lr=0.1)
    assert "did you mean server_lr or image_lr?" in str(error.value)


@pytest.mark.parametrize("given", [FEDAVG, FEDAF], ids=["fedavg", "fedaf"])
def test_a_finished_run_that_is_extended_equals_one_that_was_as_long_from_the_start(given, tmp_path):
    whole = fedaf.run(**given, rounds=3, settings=NARROW, out=tmp_path / "whole")
    fedaf.run(**given, rounds=1, settings=NARROW, out=tmp_path / "short")
    longer = fedaf.resume(tmp_path / "short", rounds=3)
    assert longer.curve == whole.curve
    for path in ("config.toml", "round-3/model.safetensors"):
        assert (tmp_path / "short" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()
    assert json.loads((tmp_path / "short" / "result.json").read_text())["rounds"] == 3
    with raises("FEDAF-RUN-ROUNDS") as error:
        fedaf.resume(tmp_path / "short", rounds=2)
    assert "3 rounds already" in str(error.value)
    assert fedaf.resume(tmp_path / "short", rounds=3).curve == whole.curve


def test_the_command_line_extends_a_run_and_draws_it_in_the_wished_format(call, tmp_path):
    assert call("run", *TINY, "--out", "run")[0] == 0
    code, out, err = call("run", "--resume", "run", "--rounds", "2", "--format", "svg")
    assert (code, err) == (0, "")
    assert "round 2/2" in out
    assert (tmp_path / "run" / "curves.svg").read_bytes().startswith(b"<?xml")
    code, _, err = call("run", "--resume", "run", "--rounds", "1")
    assert_one_sentence(code, err, ["[FEDAF-RUN-ROUNDS]", "2 rounds already", "--rounds"])


def test_a_run_and_a_comparison_name_the_command_that_continues_them(call, tmp_path):
    for name, file in (("a run", "config.toml"), ("a comparison", "comparison.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("")
    code, _, err = call("compare", "--resume", "a run")
    assert_one_sentence(code, err, ["[FEDAF-CLI-NOT-A-COMPARISON]", "fedaf run --resume 'a run'"])
    code, _, err = call("run", "--resume", "a comparison")
    assert_one_sentence(code, err, ["[FEDAF-RUN-NOT-FOUND]", "fedaf compare --resume 'a comparison'"])


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_out_is_checked_before_anything_is_printed_or_left_behind(call, tmp_path, verb):
    (tmp_path / "file").write_text("in the way")
    for out, code_of in (("file/run", "CLI-FILE"), ("file", "RUN-NOT-A-DIRECTORY")):
        code, printed, err = call(verb, *SMALL, "--out", out)
        assert_one_sentence(code, err, [f"[FEDAF-{code_of}]", "file"])
        assert printed == ""
    check_new(tmp_path / "new" / "deep")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_out_in_a_folder_that_cannot_be_written_is_one_sentence(call, tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    code, printed, err = call("run", *SMALL, "--out", "locked/run")
    assert_one_sentence(code, err, ["[FEDAF-CLI-FILE]", "locked"])
    assert printed == ""


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (["--methods", "fedavg", "fedprox"], ["[FEDAF-CLI-METHODS]", "fedprox is a method", "--methods fedaf,fedavg"]),
        (["--methods", "fedavg", "fedprox", "moon"], ["[FEDAF-CLI-USAGE]", "--methods fedaf,fedavg"]),
        (["--methods", "fedaf,fedaf"], ["[FEDAF-CLI-METHODS]", "fedaf", "once"]),
    ],
)
def test_methods_in_another_form_are_refused_with_the_right_one(call, tmp_path, methods, words):
    code, _, err = call("compare", *methods)
    assert_one_sentence(code, err, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["fedaf,fedavg", "fedaf fedavg", " fedaf, fedavg ,"])
def test_spaces_between_methods_of_one_argument_are_understood(given):
    assert options.split(given) == ("fedaf", "fedavg")


def interrupted(*words: object, until: bytes, cwd: Path) -> str:
    """Press Ctrl-C when a command prints a line that starts with ``until``, and return its stderr."""
    with heeding_ctrl_c():
        process = subprocess.Popen(
            [sys.executable, "-m", "fedaf", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd
        )
    assert process.stdout is not None
    for text in process.stdout:
        if text.startswith(until):
            process.send_signal(signal.SIGINT)
            break
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    return errors.decode()


def test_ctrl_c_prints_the_very_command_to_go_on_with(call, tmp_path):
    long = [*TINY, "--rounds", "500"]
    err = interrupted("run", *long, "--out", "my run", until=b"round 1/", cwd=tmp_path)
    assert err == "fedaf: stopped; continue with: fedaf run --resume 'my run'\n"
    err = interrupted("compare", *long, "--methods", "fedaf", "--out", "both", until=b"round 1/", cwd=tmp_path)
    assert err == "fedaf: stopped; continue with: fedaf compare --resume both\n"
    assert (tmp_path / "my run" / "LATEST").is_file()


def test_ctrl_c_in_a_command_that_is_repeated_prints_it_as_it_was(monkeypatch, capsys):
    def stop(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedaf.data.fetch.fetch.fetch", stop)
    monkeypatch.setattr(sys, "argv", ["fedaf", "data", "fetch", "cifar10", "--data-dir", "my data"])
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 130
    assert capsys.readouterr().err == ("fedaf: stopped; continue with: fedaf data fetch cifar10 --data-dir 'my data'\n")


def test_a_command_to_continue_with_repeats_where_moved_files_are():
    moved = {"data_dir": "my data", "weights": None, "dataset": None}
    line = options.resume_command("run", Path("runs/x"), moved)
    assert line == "fedaf run --resume runs/x --data-dir 'my data'"
    with pytest.raises(terminals.Stopped, match="fedaf run"), terminals.continued_by(line):
        raise KeyboardInterrupt
