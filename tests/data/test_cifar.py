"""CIFAR-10 and CIFAR-100 as published, and hostile or damaged pickles."""

import pickle
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaf.data import catalog
from fedaf.data.readers import arrays_only
from fedaf.protocol import UserError
from support.datafiles import CIFAR10_FILES, cifar_batch, pixels, python2_pickle
from support.errors import raises

WRITERS = {"Python 2": python2_pickle, "protocol 3": lambda v: pickle.dumps(v, 3), "4": lambda v: pickle.dumps(v, 4)}


def upright(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(-1, 3, 32, 32)


def write_cifar10(folder: Path, *, write=python2_pickle, rows: int = 20) -> list[dict]:
    folder.mkdir(parents=True)
    batches = [cifar_batch(rows, b"labels", 10, seed=n) for n in range(6)]
    for name, batch in zip(CIFAR10_FILES, batches, strict=True):
        (folder / name).write_bytes(write(batch))
    return batches


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("folder", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py", "files", "files/cifar10"])
def test_cifar10_is_five_batches_and_one_for_testing(tmp_path, writer, folder):
    *batches, test = write_cifar10(tmp_path / folder, write=WRITERS[writer])
    data = catalog.load("cifar10", tmp_path / "files" if folder.startswith("files") else tmp_path)
    assert np.array_equal(data.train.images.numpy(), np.concatenate([upright(batch[b"data"]) for batch in batches]))
    assert np.array_equal(data.test.images.numpy(), upright(test[b"data"]))
    assert data.train.labels.tolist() == [label for batch in batches for label in batch[b"labels"]]
    assert data.classes[:2] == ("airplane", "automobile")


@pytest.mark.parametrize("names", [True, False])
def test_cifar100_has_the_fine_labels(tmp_path, names):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        batch = cifar_batch(120, b"fine_labels", 100, seed=3) | {b"coarse_labels": [1] * 120}
        (folder / name).write_bytes(python2_pickle(batch))
    if names:
        meta = {b"fine_label_names": [b"kind %d" % n for n in range(100)], b"coarse_label_names": [b"x"]}
        (folder / "meta").write_bytes(python2_pickle(meta))
    data = catalog.load("cifar100", tmp_path)
    assert data.train.labels.tolist() == [(3 + n) % 100 for n in range(120)]
    assert data.classes[7] == ("kind 7" if names else "7")


def test_names_of_the_classes_come_from_the_files(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    meta = tmp_path / "cifar-10-batches-py" / "batches.meta"
    meta.write_bytes(python2_pickle({b"label_names": [b"%d!" % n for n in range(10)]}))
    assert catalog.load("cifar10", tmp_path).classes[9] == "9!"
    meta.write_bytes(python2_pickle({b"label_names": [b"one"]}))
    with raises("FEDAF-DATA-DAMAGED") as error:
        catalog.load("cifar10", tmp_path)
    assert "batches.meta" in str(error.value)


def test_an_array_by_column_is_turned(tmp_path):
    array = np.asfortranarray(pixels(5, 3072))
    (tmp_path / "batch").write_bytes(python2_pickle({b"data": array}))
    assert np.array_equal(arrays_only.load(tmp_path / "batch")[b"data"], array)


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "<u2"])
def test_the_order_of_bytes_is_kept(tmp_path, dtype):
    array = np.arange(7).astype(dtype) * 1000
    (tmp_path / "batch").write_bytes(pickle.dumps({b"labels": array}, 4))
    assert arrays_only.load(tmp_path / "batch")[b"labels"].tolist() == array.tolist()


@pytest.mark.parametrize(("name", "lead"), [("cifar10", 1), ("cifar100", 2)])
def test_the_binary_version_has_the_label_right_before_the_pixels(tmp_path, name, lead):
    folder = tmp_path / {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}[name]
    folder.mkdir()
    files = [f"{stem}.bin" for stem in (CIFAR10_FILES if name == "cifar10" else ["train", "test"])]
    rows = pixels(len(files), 15, lead + 3072)
    rows[..., lead - 1] %= 10
    for file, content in zip(files, rows, strict=True):
        (folder / file).write_bytes(content.tobytes())
    if name == "cifar10":
        (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    data = catalog.load(name, tmp_path)
    flat = rows[:-1].reshape(-1, lead + 3072)
    assert np.array_equal(data.train.images.numpy(), upright(flat[:, lead:]))
    assert data.train.labels.tolist() == flat[:, lead - 1].tolist()
    assert data.test.labels.tolist() == rows[-1, :, lead - 1].tolist()
    assert data.classes[1] == ("b" if name == "cifar10" else "1")


@pytest.mark.parametrize("cut", [1, 3072])
def test_rows_that_do_not_fit_are_named(tmp_path, cut):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(bytes(3074 * 2 - cut))
    with raises("FEDAF-DATA-DAMAGED") as error:
        catalog.load("cifar100", tmp_path)
    assert all(word in str(error.value) for word in ("train.bin", f"{3074 * 2 - cut:,} bytes", "3074"))


GOOD = cifar_batch(20, b"labels", 10, seed=1)
BAD_BATCHES = {
    "no data": ({b"labels": [1]}, "FEDAF-DATA-DAMAGED", ["data_batch_2", "data in", "3072"]),
    "short rows": (GOOD | {b"data": pixels(20, 3071)}, "FEDAF-DATA-DAMAGED", ["data_batch_2", "data in", "3072"]),
    "too few labels": (GOOD | {b"labels": [1] * 19}, "FEDAF-DATA-DAMAGED", ["data_batch_2", "labels in", "20"]),
    "labels that are none": (GOOD | {b"labels": [b"x"] * 20}, "FEDAF-DATA-DAMAGED", ["labels in", "20"]),
    "a label too high": (GOOD | {b"labels": [10] * 20}, "FEDAF-DATA-LABELS", ["y_train", "label 10"]),
    "no dict": ([1, 2], "FEDAF-DATA-DAMAGED", ["data_batch_2", "list", "dict"]),
}


@pytest.mark.parametrize("case", BAD_BATCHES)
def test_an_invalid_batch_is_named(tmp_path, case):
    batch, code, words = BAD_BATCHES[case]
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(python2_pickle(batch))
    with raises(code) as error:
        catalog.load("cifar10", tmp_path)
    assert all(word in str(error.value) for word in words), error.value


def test_a_missing_batch_is_named(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_4").unlink()
    with raises("FEDAF-DATA-INCOMPLETE") as error:
        catalog.load("cifar10", tmp_path)
    assert "data_batch_4" in str(error.value)
    assert "data_batch_3" not in str(error.value)


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path):
    import os

    trace = tmp_path / "ran"
    (tmp_path / "batch").write_bytes(pickle.dumps({b"data": Calls(os.system, (f"touch {trace}",))}, 3))
    with raises("FEDAF-DATA-UNSAFE") as error:
        arrays_only.load(tmp_path / "batch")
    assert f"{os.system.__module__}.system" in str(error.value)
    assert not trace.exists()


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + b"(cnumpy\nndarray\n(K\x00tU\x01btR"
HOSTILE = {
    "eval": (b"cbuiltins\neval\n(U\x011tR.", "builtins.eval"),
    "a part of numpy": (b"cnumpy\nload\n(U\x01xtR.", "numpy.load"),
    "a dotted way": (b"\x8c\x05numpy\x8c\x10ndarray.tofile.x\x93.", "numpy.ndarray.tofile"),
    "an object of a class": (b"cnumpy\ndtype\n)\x81.", "129"),
    "an old instance": (b"(inumpy\ndtype\n.", "105"),
    "a persistent id": (b"U\x01xQ.", "81"),
    "an extension": (b"\x82\x01.", "130"),
    "state of a class": (b"cnumpy\ndtype\n}b.", "state"),
    "state of a dict": (b"}}b.", "state"),
    "a call of bytes": (b"U\x01x)R.", "function"),
    "objects in an array": (b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.", "array of 'O8'"),
    "a longer shape": (ARRAY + b"(K\x01(K\x09tcnumpy\ndtype\n(U\x02u1tR\x89U\x01xtb.", "shape (9,) in 1 bytes"),
    "a negative shape": (ARRAY + b"(K\x01(J\xff\xff\xff\xfftcnumpy\ndtype\n(U\x02u1tR\x89U\x01xtb.", "shape (-1,)"),
    "a list for bytes": (ARRAY + b"(K\x01(K\x01tcnumpy\ndtype\n(U\x02u1tR\x89]tb.", "not made of bytes"),
}
BROKEN = {"an absurd length": b"\x8e" + b"\xff" * 7 + b"\x7f" + b"x", "nothing": b""}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_pickle_of_anything_but_data_is_refused(tmp_path, case):
    content, words = HOSTILE[case]
    (tmp_path / "batch").write_bytes(b"\x80\x02" + content)
    with raises("FEDAF-DATA-UNSAFE") as error:
        arrays_only.load(tmp_path / "batch")
    assert words in str(error.value), error.value


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_pickle_is_damaged(tmp_path, case):
    (tmp_path / "batch").write_bytes(b"\x80\x02" + BROKEN[case])
    with raises("FEDAF-DATA-DAMAGED"):
        arrays_only.load(tmp_path / "batch")


def test_an_array_that_was_never_filled_is_no_data(tmp_path):
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"\x80\x02}U\x04data" + ARRAY + b"s.")
    with raises("FEDAF-DATA-DAMAGED") as error:
        catalog.load("cifar10", tmp_path)
    assert "data_batch_1" in str(error.value)


@pytest.mark.parametrize("at", [0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_pickle_is_named(tmp_path, at):
    whole = python2_pickle(GOOD)
    (tmp_path / "batch").write_bytes(whole[: int(len(whole) * at)])
    with raises("FEDAF-DATA-DAMAGED") as error:
        arrays_only.load(tmp_path / "batch")
    assert str(tmp_path / "batch") in str(error.value)


WHOLE = python2_pickle({b"data": pixels(2, 5), b"labels": [1, 2], b"x": b"y" * 300})


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=40), st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))))
def test_random_bytes_give_a_dict_or_a_sentence(tmp_path_factory, change):
    path = tmp_path_factory.getbasetemp() / "random-pickle"
    modules = set(sys.modules)
    if isinstance(change, tuple):
        at, byte = change
        change = WHOLE[:at] + bytes([byte]) + WHOLE[at + 1 :]
    path.write_bytes(change)
    with suppress(UserError):
        assert isinstance(arrays_only.load(path), dict)
    assert set(sys.modules) == modules
