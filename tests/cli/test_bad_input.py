"""Wrong input of every kind ends with one sentence, its code, and exit status 2."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.commandline import SMALL, TINY, assert_one_sentence, command


def write_npz(path: Path, **changes) -> Path:
    """Write a data set of 200 images in 10 classes."""
    arrays = {
        "x_train": np.zeros((200, 8, 8), np.uint8),
        "y_train": np.arange(200) % 10,
        "x_test": np.zeros((20, 8, 8), np.uint8),
        "y_test": np.arange(20) % 10,
    }
    np.savez(path, **{**arrays, **changes})
    return path


BAD_FLAGS = {
    "a data set nearly named": (
        ["--dataset", "digit"],
        ["[FEDAF-DATA-SET-UNKNOWN]", "'digit'", "'digits'", "npz:FILE"],
    ),
    "a data set with a dash": (["--dataset", "cifar-10"], ["[FEDAF-DATA-SET-UNKNOWN]", "'cifar10'"]),
    "alpha for a partition without one": (
        ["--alpha", "0.5", "--set", "partition.kind=iid"],
        ["[FEDAF-CONFIG-NO-EFFECT]", "alpha", "'iid'"],
    ),
    "a method nearly named": (["--method", "fedav"], ["[FEDAF-METHOD-UNKNOWN]", "'fedav'", "'fedavg'", "module:Class"]),
    "a method that does not exist": (
        ["--method", "no_such_module:Method"],
        ["[FEDAF-CUSTOM-LOAD]", "no_such_module", "module:Class"],
    ),
    "a method of the wrong type": (
        ["--method", "json:JSONDecoder"],
        ["[FEDAF-METHOD-TYPE]", "json:JSONDecoder", "Method"],
    ),
    "a method by a relative module": (["--method", "..methods:Method"], ["[FEDAF-CUSTOM-LOAD]", "..methods"]),
    "a model nearly named": (["--model", "convnett"], ["[FEDAF-MODEL-UNKNOWN]", "'convnett'", "'convnet'", "resnet18"]),
    "an engine nearly named": (["--engine", "egaer"], ["[FEDAF-ENGINE-UNKNOWN]", "'egaer'", "'eager'", "auto"]),
    "a preset nearly named": (["--preset", "quik"], ["[FEDAF-PRESET-UNKNOWN]", "'quik'", "'quick'", "paper"]),
    "alpha 0": (["--alpha", "0"], ["[FEDAF-CONFIG-VALUE]", "partition.alpha is 0.0", "greater than 0"]),
    "alpha -1": (["--alpha", "-1"], ["[FEDAF-CONFIG-VALUE]", "partition.alpha is -1.0", "greater than 0"]),
    "alpha infinite": (["--alpha", "inf"], ["[FEDAF-CONFIG-VALUE]", "partition.alpha is inf"]),
    "alpha that is no number": (["--alpha", "low"], ["[FEDAF-CLI-USAGE]", "--alpha", "'low'"]),
    "no rounds": (["--rounds", "0"], ["[FEDAF-CONFIG-VALUE]", "run.rounds is 0", "1"]),
    "no clients": (["--clients", "0"], ["[FEDAF-CONFIG-VALUE]", "partition.clients is 0", "1"]),
    "no participants": (["--participation", "0"], ["[FEDAF-CONFIG-VALUE]", "federation.participation is 0.0"]),
    "a negative seed": (["--seed", "-1"], ["[FEDAF-CONFIG-VALUE]", "run.seed is -1", "0"]),
    "gamma over 1": (["--set", "method.gamma=1.5"], ["[FEDAF-CONFIG-VALUE]", "method.gamma is 1.5"]),
    "more clients than samples": (["--clients", "5000"], ["[FEDAF-PARTITION-TOO-FEW]", "5000 clients", "--clients"]),
    "too few samples for all clients": (
        ["--clients", "150"],
        ["[FEDAF-PARTITION-TOO-FEW]", "150 clients", "partition.min_size"],
    ),
    "an IPC that no client can reach": (["--ipc", "500"], ["[FEDAF-CONDENSE-NO-CLASS]", "500", "method.ipc"]),
    "a mean of more images than any client has": (
        ["--ipc", "5", "--set", "method.init_mean_of=500"],
        ["[FEDAF-CONDENSE-NO-CLASS]", "500", "method.init_mean_of"],
    ),
    "an unknown setting": (
        ["--set", "method.gama=0.5"],
        ["[FEDAF-CONFIG-KEY]", "'method.gama'", "did you mean 'gamma'", "fedaf"],
    ),
    "an unknown table": (["--set", "metod.gamma=0.5"], ["[FEDAF-CONFIG-TABLE]", "'metod'", "did you mean 'method'"]),
    "a setting without a value": (["--set", "method.gamma"], ["[FEDAF-CONFIG-SETTING]", "method.gamma"]),
    "a setting without a table": (["--set", "gamma=0.5"], ["[FEDAF-CONFIG-SETTING]", "'gamma'"]),
    "a setting of the wrong type": (["--set", "run.rounds=many"], ["[FEDAF-CONFIG-VALUE]", "run.rounds is 'many'"]),
    "an unknown flag": (["--alfa", "1"], ["[FEDAF-CLI-USAGE]", "--alfa"]),
    "an unknown device": (["--device", "abacus"], ["[FEDAF-DEVICE-UNKNOWN]", "'abacus'", "auto", "cuda"]),
    "verbose and quiet": (["-v", "-q"], ["[FEDAF-CLI-VERBOSITY]", "-v", "-q"]),
    "real images by accident": (
        ["--set", "method.init=real"],
        ["[FEDAF-CONFIG-VALUE]", "init = 'real'", "allow_real_init"],
    ),
    "an option of another method": (
        ["--method", "fedavg", "--ipc", "5"],
        ["[FEDAF-CONFIG-KEY]", "method.ipc", "fedavg", "local_epochs"],
    ),
    "a model too deep": (["--set", "model.depth=6"], ["[FEDAF-MODEL-DEPTH]", "depth 6", "8x8", "model.depth"]),
    "a missing data set": (["--dataset", "cifar10"], ["[FEDAF-DATA-NOT-FOUND]", "cifar10", "--data-dir"]),
    "a missing data file": (["--dataset", "npz:mine.npz"], ["[FEDAF-DATA-NOT-FOUND]", "mine.npz"]),
    "a missing configuration": (["no.toml"], ["[FEDAF-CONFIG-READ]", "no.toml"]),
    "a missing run to resume": (["--resume", "nowhere"], ["[FEDAF-RUN-NOT-FOUND]", "nowhere", "--resume"]),
    "a flag beside --resume": (["--resume", "nowhere", "--alpha", "3"], ["[FEDAF-CLI-RESUME]", "--alpha"]),
    "a flag of 0 beside --resume": (["--resume", "nowhere", "--seed", "0"], ["[FEDAF-CLI-RESUME]", "--seed"]),
    "a setting beside --resume": (["--resume", "nowhere", "--set", "run.rounds=3"], ["[FEDAF-CLI-RESUME]", "--set"]),
    "a file beside --resume": (["some.toml", "--resume", "nowhere"], ["[FEDAF-CLI-RESUME]", "TOML file"]),
}


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_input_is_one_sentence(call, case):
    args, words = BAD_FLAGS[case]
    code, out, err = call("run", *args)
    assert_one_sentence(code, err, words)
    assert out == ""


@pytest.mark.parametrize("case", ["a data set nearly named", "an IPC that no client can reach", "an unknown flag"])
def test_bad_input_is_one_sentence_from_a_real_process(case, tmp_path):
    args, words = BAD_FLAGS[case]
    done = command("run", *args, cwd=tmp_path)
    assert_one_sentence(done.returncode, done.stderr, words)
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none_is_one_sentence(call, device):
    code, _, err = call("run", "--device", device)
    assert_one_sentence(code, err, ["[FEDAF-DEVICE-MISSING]", f"'{device}'", "--device auto"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[run\nrounds = 1", ["[FEDAF-CONFIG-TOML]", "given.toml", "line 1"]),
        ("[runn]\nrounds = 1", ["[FEDAF-CONFIG-TABLE]", "'runn'", "did you mean 'run'"]),
        ("[method]\ngama = 1", ["[FEDAF-CONFIG-KEY]", "'method.gama'", "did you mean 'gamma'"]),
        ("rounds = 1", ["[FEDAF-CONFIG-NO-TABLE]", "'rounds'"]),
        ("run = 5", ["[FEDAF-CONFIG-NO-TABLE]", "'run'"]),
        ("[[run]]\nrounds = 1", ["[FEDAF-CONFIG-NO-TABLE]", "'run'"]),
        ("method = 'fedavg'", ["[FEDAF-CONFIG-NO-TABLE]", "'method'"]),
        ("[partition]\nkind = 'file'", ["[FEDAF-PARTITION-PATH]", "partition.path"]),
        ("[partition]\nkind = 'file'\npath = 'given.toml'", ["[FEDAF-PARTITION-FILE]", "given.toml"]),
        ("[data]\nmean = [0.1, 0.2]", ["[FEDAF-DATA-NORMALISATION]", "data.mean", "2", "1"]),
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
    assert_one_sentence(code, err, ["[FEDAF-CONFIG-VALUE]", "method.name is 5"])


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
    assert_one_sentence(code, err, ["[FEDAF-DATA-DAMAGED]", "data.npz", "x_train"])
    assert "allow_pickle" not in err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": np.zeros((200, 8, 8))}, ["[FEDAF-DATA-SHAPE]", "x_train", "uint8", "float64"]),
        (
            {"x_train": np.zeros((0, 8, 8), np.uint8), "y_train": np.zeros(0, int)},
            ["[FEDAF-DATA-SHAPE]", "x_train", "[0, 8, 8]"],
        ),
        ({"y_train": np.arange(199)}, ["[FEDAF-DATA-LABELS]", "y_train", "200 images"]),
        ({"y_test": np.full(20, -1)}, ["[FEDAF-DATA-LABELS]", "y_test", "-1 in row 0"]),
        ({"y_train": np.zeros(200)}, ["[FEDAF-DATA-LABELS]", "y_train"]),
        ({"x_train": np.array([{}], object)}, ["[FEDAF-DATA-DAMAGED]", "data.npz", "x_train"]),
        ({"x_test": np.zeros((20, 9, 9), np.uint8)}, ["[FEDAF-DATA-SHAPE]", "x_test"]),
        ({"x_test": np.zeros((20, 8, 8, 3), np.uint8)}, ["[FEDAF-DATA-SHAPE]", "x_test"]),
        ({"y_train": np.arange(200) + 2**40}, ["[FEDAF-DATA-LABELS]", "y_train"]),
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
    assert_one_sentence(code, err, ["[FEDAF-DATA-LABELS]", "y_train", "10"])


@pytest.mark.parametrize(("verb", "label"), [("run", "RUN-NOT-FOUND"), ("compare", "CLI-NOT-A-COMPARISON")])
def test_a_foreign_directory_is_not_resumed(call, tmp_path, verb, label):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear")
    code, _, err = call(verb, "--resume", "foreign")
    assert_one_sentence(code, err, [f"[FEDAF-{label}]", "foreign"])
    assert [path.name for path in (tmp_path / "foreign").iterdir()] == ["letter.txt"]


@pytest.mark.parametrize("verb", ["run", "compare"])
def test_a_directory_in_use_is_left_alone(call, tmp_path, verb):
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "letter.txt").write_text("dear")
    code, _, err = call(verb, *SMALL, "--out", "used")
    assert_one_sentence(code, err, ["[FEDAF-RUN-DIRECTORY-IN-USE]", "used", "--out", "--resume"])
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["letter.txt"]


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


@pytest.mark.parametrize("verb", ["run", "compare"])
@pytest.mark.parametrize("out", ["file/run", pytest.param("/proc/fedaf", marks=on_linux)])
def test_a_place_that_cannot_be_written_is_one_sentence(call, tmp_path, verb, out):
    (tmp_path / "file").write_text("in the way")
    code, _, err = call(verb, *SMALL, "--out", out)
    assert_one_sentence(code, err, ["[FEDAF-CLI-FILE]", out])


def test_methods_to_compare_are_checked_before_anything_is_written(call, tmp_path):
    for methods, words in (
        ("fedaf,fedavh", ["[FEDAF-METHOD-UNKNOWN]", "'fedavh'", "'fedavg'"]),
        (",", ["[FEDAF-CLI-METHODS]"]),
    ):
        code, _, err = call("compare", "--methods", methods, "--out", "c")
        assert_one_sentence(code, err, words)
    code, _, err = call("compare", "--set", "method.gama=1", "--out", "c")
    assert_one_sentence(code, err, ["[FEDAF-CONFIG-KEY]", "method.gama"])
    assert list(tmp_path.iterdir()) == []
