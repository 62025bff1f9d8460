"""The command line: wrong input is one sentence and exit code 2, and a run leaves all that it promises."""

import json
import os
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image

import fedaf
from fedaf import cli

SMALL = ["--dataset", "digits", "--preset", "quick", "--rounds", "1", "--set", "model.width=16", "--device", "cpu"]
TINY = [*SMALL, "--local-steps", "2", "--ipc", "5", "--set", "method.server_epochs=2", "--set", "run.threads=1"]

COLOURS = ("FORCE_COLOR", "TTY_COMPATIBLE", "PY_COLORS", "GITHUB_ACTIONS")  # each makes a file pass for a terminal


def command(*args: object, **options) -> subprocess.CompletedProcess[str]:
    """The command as a user gives it, in a process of its own and far from any terminal."""
    env = {name: value for name, value in os.environ.items() if name not in COLOURS}
    line = [sys.executable, "-m", "fedaf", *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=env, timeout=120, **options)


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """The same without a new process: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in COLOURS:
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedaf", *map(str, args)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        out, err = capsys.readouterr()
        return exit.value.code or 0, out, err

    yield call
    torch.set_num_threads(threads)


def assert_one_sentence(code: int, err: str, words: list[str]) -> None:
    assert code == 2, err
    assert "Traceback" not in err
    assert err.startswith("fedaf: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert all(word in err for word in words), err


def write_npz(path: Path, **changes) -> Path:
    """A data set of one's own: 200 images in 10 classes."""
    arrays = {
        "x_train": np.zeros((200, 8, 8), np.uint8),
        "y_train": np.arange(200) % 10,
        "x_test": np.zeros((20, 8, 8), np.uint8),
        "y_test": np.arange(20) % 10,
    }
    np.savez(path, **{**arrays, **changes})
    return path


BAD_FLAGS = {
    "a data set nearly named": (["--dataset", "digit"], ["unknown data set 'digit'", "'digits'", "npz:FILE"]),
    "a data set with a dash": (["--dataset", "cifar-10"], ["'cifar10'"]),
    "a method nearly named": (["--method", "fedav"], ["unknown method 'fedav'", "'fedavg'", "module:Class"]),
    "a method that is nowhere": (["--method", "no_such_module:Method"], ["no_such_module", "module:Class"]),
    "a method that is none": (["--method", "json:JSONDecoder"], ["json:JSONDecoder", "Method"]),
    "a method by a relative module": (["--method", "..methods:Method"], ["..methods", "module:Class"]),
    "a model nearly named": (["--model", "convnett"], ["unknown model 'convnett'", "'convnet'", "resnet18"]),
    "a preset nearly named": (["--preset", "quik"], ["unknown preset 'quik'", "'quick'", "paper"]),
    "alpha 0": (["--alpha", "0"], ["partition.alpha is 0.0", "greater than 0"]),
    "alpha -1": (["--alpha", "-1"], ["partition.alpha is -1.0", "greater than 0"]),
    "alpha that is no number": (["--alpha", "low"], ["--alpha", "'low'"]),
    "no rounds": (["--rounds", "0"], ["run.rounds is 0", "1"]),
    "no clients": (["--clients", "0"], ["partition.clients is 0", "1"]),
    "nobody asked": (["--participation", "0"], ["federation.participation is 0.0", "greater than 0"]),
    "a negative seed": (["--seed", "-1"], ["run.seed is -1", "0"]),
    "gamma over 1": (["--set", "method.gamma=1.5"], ["method.gamma is 1.5", "less than or equal to 1"]),
    "more clients than samples": (["--clients", "5000"], ["5000 clients", "samples", "--clients"]),
    "too few samples for all clients": (["--clients", "150"], ["150 clients", "partition.min_size"]),
    "an IPC nobody can meet": (["--ipc", "500"], ["ipc 500", "no client holds more than", "lower method.ipc"]),
    "a mean of more than anybody has": (
        ["--ipc", "5", "--set", "method.init_mean_of=500"],
        ["500", "no client holds more than", "method.init_mean_of"],
    ),
    "an unknown setting": (["--set", "method.gama=0.5"], ["'method.gama'", "did you mean 'gamma'", "fedaf"]),
    "an unknown table": (["--set", "metod.gamma=0.5"], ["'metod'", "did you mean 'method'"]),
    "a setting without a value": (["--set", "method.gamma"], ["method.gamma", "table.key=value"]),
    "a setting without a table": (["--set", "gamma=0.5"], ["'gamma'", "table.key"]),
    "a setting of the wrong kind": (["--set", "run.rounds=many"], ["run.rounds is 'many'", "integer"]),
    "an unknown flag": (["--alfa", "1"], ["--alfa"]),
    "an unknown device": (["--device", "abacus"], ["unknown device 'abacus'", "auto", "cuda"]),
    "say more and nothing": (["-v", "-q"], ["-v", "-q", "contradict"]),
    "photographs by accident": (["--set", "method.init=real"], ["init = 'real'", "allow_real_init"]),
    "an option of another method": (["--method", "fedavg", "--ipc", "5"], ["method.ipc", "fedavg", "local_epochs"]),
    "a model too deep": (["--set", "model.depth=6"], ["depth 6", "8x8", "lower model.depth"]),
    "a missing data set": (["--dataset", "cifar10"], ["'cifar10'", "cifar10.npz", "--data-dir"]),
    "a missing file of one's own": (["--dataset", "npz:mine.npz"], ["mine.npz"]),
    "a missing configuration": (["no.toml"], ["no.toml", "cannot be read"]),
    "a missing run to resume": (["--resume", "nowhere"], ["nowhere", "not a run directory", "--resume"]),
    "a flag beside --resume": (["--resume", "nowhere", "--rounds", "3"], ["--resume", "leave out --rounds"]),
    "a setting beside --resume": (["--resume", "nowhere", "--set", "run.rounds=3"], ["leave out --set"]),
    "a file beside --resume": (["some.toml", "--resume", "nowhere"], ["leave out the TOML file"]),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_input_is_one_sentence(call, case):
    args, words = BAD_FLAGS[case]
    code, out, err = call("run", *args)
    assert_one_sentence(code, err, words)
    assert out == ""


@pytest.mark.parametrize("case", ["a data set nearly named", "an IPC nobody can meet", "an unknown flag"])
def test_bad_input_is_one_sentence_from_a_real_process(case, tmp_path):
    args, words = BAD_FLAGS[case]
    done = command("run", *args, cwd=tmp_path)
    assert_one_sentence(done.returncode, done.stderr, words)
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_an_endless_alpha_is_one_sentence_about_alpha(tmp_path):
    done = command("run", "--alpha", "inf", cwd=tmp_path)
    assert_one_sentence(done.returncode, done.stderr, ["partition.alpha"])
    assert "raise partition.alpha" not in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none_is_one_sentence(call, device):
    code, _, err = call("run", "--device", device)
    assert_one_sentence(code, err, [f"'{device}'", "0 CUDA devices", "--device auto"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run\nrounds = 1", ["given.toml", "not valid TOML", "line 1"]),
        ("[runn]\nrounds = 1", ["'runn'", "did you mean 'run'"]),
        ("[method]\ngama = 1", ["'method.gama'", "did you mean 'gamma'"]),
        ("rounds = 1", ["'rounds'", "outside any table"]),
        ("run = 5", ["'run'", "table"]),
        ("[[run]]\nrounds = 1", ["run", "table"]),
        ("method = 'fedavg'", ["'method'", "table"]),
        ("[partition]\nkind = 'file'", ["partition.path"]),
        ("[partition]\nkind = 'file'\npath = 'given.toml'", ["given.toml", "not a partition"]),
        ("[data]\nmean = [0.1, 0.2]", ["data.mean", "1 value"]),
    ],
)
@pytest.mark.parametrize("verb", ["run", "compare"])
def test_a_bad_file_is_one_sentence(call, tmp_path, verb, text, words):
    (tmp_path / "given.toml").write_text(text)
    code, _, err = call(verb, "given.toml", "--rounds", "1", "--out", "run", *(["--ipc", "5"] if verb == "run" else []))
    assert_one_sentence(code, err, words)
    assert not (tmp_path / "run").exists()


def test_a_method_that_is_no_name_is_one_sentence(call, tmp_path):
    (tmp_path / "given.toml").write_text("[method]\nname = 5")
    code, _, err = call("run", "given.toml")
    assert_one_sentence(code, err, ["method.name is 5"])


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"PK\x03\x04garbage", b"\x80\x04.", "half", "flipped", "an .npy"], ids=repr
)
def test_a_corrupt_data_file_is_one_sentence(call, tmp_path, content):
    path = write_npz(tmp_path / "data.npz")
    whole = path.read_bytes()
    if content == "half":
        content = whole[: len(whole) // 2]
    elif content == "flipped":
        middle = whole.index(b"\x93NUMPY") + 300
        content = whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :]
    elif content == "an .npy":
        np.save(tmp_path / "array.npy", np.zeros(3))
        content = (tmp_path / "array.npy").read_bytes()
    path.write_bytes(content)
    code, _, err = call("run", "--dataset", "npz:data.npz")
    assert_one_sentence(code, err, ["data.npz is not a data set", "x_train"])
    assert "allow_pickle" not in err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": np.zeros((200, 8, 8))}, ["x_train", "uint8", "float64"]),
        ({"x_train": np.zeros((0, 8, 8), np.uint8), "y_train": np.zeros(0, int)}, ["x_train", "[0, 8, 8]"]),
        ({"y_train": np.arange(199)}, ["y_train", "200 images"]),
        ({"y_test": np.full(20, -1)}, ["y_test", ">= 0"]),
        ({"y_train": np.zeros(200)}, ["y_train"]),
        ({"x_train": np.array([{}], object)}, ["data.npz", "x_train"]),
        ({"x_test": np.zeros((20, 9, 9), np.uint8)}, ["x_test"]),
        ({"x_test": np.zeros((20, 8, 8, 3), np.uint8)}, ["x_test"]),
        ({"y_train": np.arange(200) + 2**40}, ["y_train"]),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, dict) else "",
)
def test_data_of_the_wrong_shape_are_one_sentence(call, tmp_path, changes, words):
    write_npz(tmp_path / "data.npz", **changes)
    code, _, err = call("run", "--dataset", "npz:data.npz", *TINY[2:], "--clients", "2", "--alpha", "100")
    assert_one_sentence(code, err, words)


def test_labels_that_a_data_set_does_not_have_are_one_sentence(call, tmp_path):
    many = {"x_train": np.zeros((200, 32, 32, 3), np.uint8), "x_test": np.zeros((20, 32, 32, 3), np.uint8)}
    write_npz(tmp_path / "cifar10.npz", **many, y_train=np.arange(200) % 20)
    code, _, err = call(
        "run", "--dataset", "cifar10", "--data-dir", tmp_path, *TINY[2:], "--clients", "2", "--alpha", "100"
    )
    assert_one_sentence(code, err, ["y_train", "10"])


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_a_foreign_directory_is_not_resumed(call, tmp_path, verb):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear")
    code, _, err = call(verb, "--resume", "foreign")
    assert_one_sentence(code, err, ["foreign is not a"])
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_a_directory_in_use_is_left_alone(call, tmp_path, verb):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter.txt").write_text("dear")
    code, _, err = call(verb, *SMALL, "--out", "used")
    assert_one_sentence(code, err, ["used is in use", "--out", "--resume"])
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["letter.txt"]


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


@pytest.mark.parametrize("verb", ["run", "compare"])
@pytest.mark.parametrize("out", ["file/run", pytest.param("/proc/fedaf", marks=on_linux)])
def test_a_place_that_cannot_be_written_is_one_sentence(call, tmp_path, verb, out):
    (tmp_path / "file").write_text("in the way")
    code, _, err = call(verb, *SMALL, "--out", out)
    assert_one_sentence(code, err, [out])


def test_methods_to_compare_are_checked_before_anything_is_written(call, tmp_path):
    for methods, words in (("fedaf,fedavh", ["'fedavh'", "'fedavg'"]), (",", ["at least one method"])):
        code, _, err = call("compare", "--methods", methods, "--out", "c")
        assert_one_sentence(code, err, words)
    code, _, err = call("compare", "--set", "method.gama=1", "--out", "c")
    assert_one_sentence(code, err, ["method.gama"])
    assert list(tmp_path.iterdir()) == []


COMMON = [
    *("--dataset", "--data-dir", "--preset", "--alpha", "--clients", "--rounds", "--ipc", "--local-steps"),
    *("--participation", "--model", "--seed", "--device", "--out", "--resume", "--set"),
    *("--verbose", "--quiet", "-v", "-q"),
]


@pytest.mark.parametrize(
    ("args", "names"),
    [
        ([], ["run", "compare", "--version"]),
        (["run"], [*COMMON, "--method"]),
        (["compare"], [*COMMON, "--methods"]),
    ],
    ids=["fedaf", "run", "compare"],
)
def test_help_names_every_flag(call, args, names):
    code, out, err = call(*args, "--help")
    assert (code, err) == (0, "")
    words = re.sub(r"\x1b\[[0-9;]*m", "", out).replace("│", " ").replace(",", " ").split()
    parsed = typer.main.get_command(cli.app)
    if not args:
        names = [*names, *parsed.commands]
    else:
        parsed = parsed.commands[args[0]]
        names = [*names, *(opt for param in parsed.params for opt in param.opts if opt.startswith("--"))]
    assert set(names) <= set(words)


def test_version_is_told(call):
    assert call("--version") == (0, f"fedaf {fedaf.__version__}\n", "")


def test_no_arguments_give_the_help(call):
    code, out, _ = call()
    assert code == 2
    assert "compare" in out


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run by the real command: its process and its directory."""
    folder = tmp_path_factory.mktemp("cli")
    return command("run", *TINY, "--out", "run", cwd=folder), folder / "run"


def result_of(directory: Path) -> dict:
    return json.loads((directory / "result.json").read_text())


def test_a_run_leaves_what_it_promises(finished):
    done, directory = finished
    assert (done.returncode, done.stderr) == (0, "")
    assert tomllib.loads((directory / "config.toml").read_text())["method"]["ipc"] == 5
    split = json.loads((directory / "partition.json").read_text())
    assert len(split["rows"]) == len(split["counts"]) == 10
    assert (directory / "LATEST").read_text() == "round-1"
    assert (directory / "round-1" / "model.safetensors").is_file()
    assert not list(directory.rglob("*.part"))
    for picture in ("curves.png", "partition.png", "condensed.png"):
        Image.open(directory / picture).verify()


def test_the_result_has_every_figure(finished):
    _, directory = finished
    result = result_of(directory)
    assert set(result) >= {
        "schema_version",
        "method",
        "preset",
        "dataset",
        "alpha",
        "seed",
        "rounds",
        "best_accuracy",
        "last_accuracy",
        "curve",
        "upload_bytes_per_client_round",
        "download_bytes_per_client_round",
        "seconds",
        "copy_audit",
        "versions",
        "threads",
    }
    assert (result["method"], result["preset"], result["dataset"]) == ("fedaf", "quick", "digits")
    assert (result["alpha"], result["seed"], result["rounds"], result["threads"]) == (0.1, 0, 1, 1)
    assert result["curve"] == [result["best_accuracy"]] == [result["last_accuracy"]]
    assert 0 <= result["best_accuracy"] <= 100
    assert result["seconds"] > 0
    assert set(result["versions"]) == {"fedaf", "torch", "python"}
    assert result["copy_audit"]["images"] > 0


def test_every_round_is_a_line_of_metrics_that_adds_up_to_the_result(finished):
    _, directory = finished
    (line,) = (directory / "metrics.jsonl").read_text().splitlines()
    metrics = json.loads(line)
    assert metrics["round"] == 1
    assert metrics["accuracy"] == result_of(directory)["curve"][0]
    assert set(metrics["losses"]) >= {"dm", "cdc", "ce"}
    assert set(metrics["seconds"]) == {"knowledge", "condense", "server", "evaluate"}
    for way in ("upload", "download"):
        assert set(metrics[f"{way}_bytes"]) == {"knowledge", "condense"}
        by_client = metrics[f"{way}_bytes"].values()
        assert all(len(phase) == 10 for phase in by_client)
        total = sum(sum(phase.values()) for phase in by_client)
        assert result_of(directory)[f"{way}_bytes_per_client_round"] == pytest.approx(total / 10)


def test_what_was_shared_lies_there_as_images(finished):
    _, directory = finished
    counts = json.loads((directory / "partition.json").read_text())["counts"]
    condensed = {name: sum(count >= 10 for count in of_client) for name, of_client in counts.items()}
    sheets = {}
    for path in (directory / "condensed").glob("*.png"):
        with Image.open(path) as sheet:
            sheets[path.stem] = sheet.size
    assert sheets == {name: (5 * 9 - 1, classes * 9 - 1) for name, classes in condensed.items() if classes}
    index = json.loads((directory / "condensed" / "index.json").read_text())
    assert {name: len(facts["classes"]) for name, facts in index.items()} == {n: c for n, c in condensed.items() if c}


def test_far_from_a_terminal_the_output_is_plain_lines(finished):
    done, directory = finished
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    accuracy = result_of(directory)["best_accuracy"]
    assert "fedaf on digits on cpu: rounds 1 to 1" in done.stdout
    assert f"round 1/1: accuracy {accuracy:.2f} %" in done.stdout
    assert "Everything is in run" in done.stdout


def test_a_written_configuration_runs_to_the_same_curve(finished, call, tmp_path):
    _, directory = finished
    code, _, err = call("run", directory / "config.toml", "--out", "again")
    assert (code, err) == (0, "")
    again = result_of(tmp_path / "again")
    assert again["curve"] == result_of(directory)["curve"]
    assert (tmp_path / "again" / "partition.json").read_text() == (directory / "partition.json").read_text()
    assert (tmp_path / "again" / "config.toml").read_text() == (directory / "config.toml").read_text()


def test_another_seed_runs_to_another_split(finished, call, tmp_path):
    _, directory = finished
    code, _, _ = call("run", directory / "config.toml", "--seed", "1", "--out", "again", "-q")
    assert code == 0
    assert (tmp_path / "again" / "partition.json").read_text() != (directory / "partition.json").read_text()


def test_quiet_prints_only_the_result(call, tmp_path):
    code, out, err = call("run", *TINY, "--out", "run", "-q")
    assert (code, err) == (0, "")
    assert f"{result_of(tmp_path / 'run')['best_accuracy']:.2f} %" in out
    assert "Everything is in run" in out
    assert "Who holds what" not in out
    assert "round 1/1" not in out
    assert "rounds 1 to 1" not in out


def test_verbose_tells_of_every_phase(call):
    code, out, _ = call("run", *TINY, "--out", "run", "-v")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("round 1: ")] == [
        "round 1: knowledge, 10 clients",
        "round 1: condense, 10 clients",
        "round 1: server",
    ]


def test_without_out_every_run_gets_a_directory_of_its_own(call, tmp_path):
    for _ in range(2):
        code, _, _ = call("run", *SMALL, "--method", "fedavg", "--set", "method.local_epochs=1", "-q")
        assert code == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["digits-fedavg-seed0", "digits-fedavg-seed0-2"]


def test_compare_runs_all_methods_on_the_same_split(call, tmp_path):
    code, out, err = call("compare", *TINY, "--set", "method.local_epochs=1", "--out", "both")
    assert (code, err) == (0, "")
    of_fedaf, of_fedavg = (tmp_path / "both" / name for name in ("fedaf", "fedavg"))
    assert (of_fedaf / "partition.json").read_text() == (of_fedavg / "partition.json").read_text()
    for directory in (of_fedaf, of_fedavg):
        assert f"{result_of(directory)['best_accuracy']:.2f} %" in out
    assert out.count("Who holds what") == 1
    assert tomllib.loads((of_fedavg / "config.toml").read_text())["method"]["local_epochs"] == 1
    code, again, _ = call("compare", "--resume", "both", "-q")
    assert code == 0
    assert f"{result_of(of_fedaf)['best_accuracy']:.2f} %" in again


LONG = [*TINY, "--set", "run.rounds=2", "--set", "run.keep_checkpoints=0", "-q"]


def test_a_disk_that_fills_up_costs_the_round_and_not_the_run(call, tmp_path):
    """A limit on the size of files stands for the disk: clients keep more after round 2 than after round 1."""
    assert call("run", *LONG, "--out", "whole")[0] == 0
    after = {n: (tmp_path / "whole" / f"round-{n}" / "clients.safetensors").stat().st_size for n in (1, 2)}
    limit = (after[1] + after[2]) // 2
    files_of_round_1 = [p for p in (tmp_path / "whole").rglob("*") if p.is_file() and "round-2" not in str(p)]
    assert max(p.stat().st_size for p in files_of_round_1 if p.suffix != ".png") < limit < after[2]

    def full() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = command("run", *LONG, "--out", "run", cwd=tmp_path, preexec_fn=full)
    assert_one_sentence(done.returncode, done.stderr, ["File too large", "checkpoint"])
    run = tmp_path / "run"
    assert (run / "LATEST").read_text() == "round-1"
    assert not (run / "result.json").exists()
    code, _, err = call("run", "--resume", "run", "-q")
    assert (code, err) == (0, "")
    assert result_of(run)["curve"] == result_of(tmp_path / "whole")["curve"]
