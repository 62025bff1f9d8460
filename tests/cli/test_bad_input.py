"""Wrong input of every kind is one sentence and exit code 2."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from support.commandline import SMALL, TINY, assert_one_sentence, command


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
    "alpha for a split without one": (
        ["--alpha", "0.5", "--set", "partition.kind=iid"],
        ["alpha", "no effect", "'iid'"],
    ),
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
        ("[data]\nmean = [0.1, 0.2]", ["data.mean has 2 values", "expected 1"]),
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
