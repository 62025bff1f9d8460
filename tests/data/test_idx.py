"""MNIST and FashionMNIST as IDX files."""

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaf.data import catalog
from fedaf.data.readers import idx as reader
from fedaf.data.sets.fashionmnist import SPEC
from support.datafiles import idx, pixels, write_idx
from support.errors import raises


@pytest.mark.parametrize("folder", ["mnist", "mnist/raw", "MNIST/raw"])
@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_the_published_files_are_read(tmp_path, folder, dot, packed):
    arrays = write_idx(tmp_path / folder, dot=dot, packed=packed)
    data = catalog.load("mnist", tmp_path)
    assert np.array_equal(data.train.images.numpy(), arrays["x_train"][:, None])
    assert np.array_equal(data.test.images.numpy(), arrays["x_test"][:, None])
    assert data.train.labels.tolist() == arrays["y_train"].tolist()
    assert data.classes == tuple("0123456789")
    assert data.mean == (0.1307,)


@pytest.mark.parametrize("folder", [".", "raw"])
def test_the_files_may_be_in_the_named_folder_itself(tmp_path, folder):
    write_idx(tmp_path / "anything" / folder)
    assert len(catalog.load("mnist", tmp_path / "anything").train) == 30


@pytest.mark.parametrize("packed", [True, False])
def test_files_of_another_set_with_the_same_names_are_not_taken(tmp_path, packed):
    """The labels tell them apart."""
    write_idx(tmp_path, packed=packed)
    labels = next(tmp_path.glob("train-labels*"))
    content = idx(np.array([5, 0, 4, 1, 9, 2, 1, 3, 1, 4, *[0] * 20], np.uint8))  # those of MNIST begin like this
    labels.write_bytes(gzip.compress(content) if packed else content)
    assert len(catalog.load("mnist", tmp_path).train) == 30
    spec = replace(SPEC, reader=replace(SPEC.reader, installed=()))
    assert spec.reader.find(spec, tmp_path, None, None) is None


IMAGES, LABELS = pixels(30, 28, 28), np.zeros(30, np.uint8)
BAD = {
    "short": ("train-images-idx3-ubyte", idx(IMAGES)[:-1], ["train-images", "declares 23,536"]),
    "long": ("train-images-idx3-ubyte", idx(IMAGES) + b"x", ["train-images", "declares 23,536"]),
    "short within": ("train-images-idx3-ubyte.gz", gzip.compress(idx(IMAGES)[:-1]), ["23,519 of the 23,520"]),
    "long within": (
        "train-images-idx3-ubyte.gz",
        gzip.compress(idx(IMAGES) + b"x"),
        ["train-images", "more than the 23,520"],
    ),
    "half gzip": ("train-images-idx3-ubyte.gz", gzip.compress(idx(IMAGES))[:9000], ["train-images", "gzip"]),
    "no gzip": ("train-images-idx3-ubyte.gz", b"garbage", ["train-images", "gzip"]),
    "empty": ("train-images-idx3-ubyte", b"", ["train-images", "nothing"]),
    "not IDX": ("train-images-idx3-ubyte", b"PK\x03\x04", ["train-images", "504b"]),
    "cut header": ("train-images-idx3-ubyte", idx(IMAGES)[:10], ["train-images", "header"]),
    "floats": ("train-images-idx3-ubyte", b"\0\0\x0d\x03" + idx(IMAGES)[4:], ["type 0x0d"]),
    "labels for images": ("train-images-idx3-ubyte", idx(LABELS), ["1 dimensions", "and 3"]),
    "another size": ("train-images-idx3-ubyte", idx(pixels(30, 32, 32)), ["32x32", "28x28"]),
    "more images than labels": ("train-images-idx3-ubyte", idx(pixels(31, 28, 28)), ["31 images", "30 labels"]),
    "a wrong label": ("train-labels-idx1-ubyte", idx(LABELS + 10), ["y_train", "label 10"]),
    "more than gzip can hold": (
        "train-images-idx3-ubyte.gz",
        gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 1 << 30, 28, 28)),
        ["more than", "can hold"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_damaged_file_is_named(tmp_path, case):
    name, content, words = BAD[case]
    write_idx(tmp_path / "mnist", packed=False)
    (tmp_path / "mnist" / name.removesuffix(".gz")).unlink()
    (tmp_path / "mnist" / name).write_bytes(content)
    with raises("FEDAF-DATA-LABELS" if case == "a wrong label" else "FEDAF-DATA-DAMAGED") as error:
        catalog.load("mnist", tmp_path)
    assert all(word in str(error.value) for word in words), error.value


def test_a_missing_file_of_four_is_named(tmp_path):
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with raises("FEDAF-DATA-INCOMPLETE") as error:
        catalog.load("mnist", tmp_path)
    assert "t10k-labels-idx1-ubyte" in str(error.value)
    assert "t10k-images" not in str(error.value)


def test_a_gzip_bomb_is_not_expanded_beyond_what_it_declares(tmp_path, monkeypatch):
    write_idx(tmp_path / "mnist")
    bomb = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    bomb.write_bytes(gzip.compress(idx(LABELS) + bytes(10_000_000)))
    expanded = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda file, size: expanded.append(size) or read(file, size))
    with raises("FEDAF-DATA-DAMAGED") as error:
        catalog.load("mnist", tmp_path)
    assert "the 30 bytes" in str(error.value)
    assert sum(expanded) == 18 + 4 + 4 + 30 + 1  # 18 to see which data set it is


@settings(deadline=None)
@given(data=st.binary(max_size=60), packed=st.booleans())
def test_random_bytes_give_a_sentence(tmp_path_factory, data, packed):
    path = tmp_path_factory.getbasetemp() / ("random.gz" if packed else "random")
    path.write_bytes(gzip.compress(data) if packed else data)
    with raises("FEDAF-DATA-DAMAGED"), reader._open(path) as file:
        list(reader._data(file, path, reader._header(file, path, 3)[0]))
