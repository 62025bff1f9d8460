"""The check of a data set that custom code made."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedaf.data import catalog
from fedaf.data.dataset import DataSet, Split
from fedaf.data.in_memory import as_dataset
from fedaf.data.spec import DatasetSpec
from support.datafiles import pixels, register
from support.errors import raises

IMAGES, LABELS = torch.from_numpy(pixels(12, 3, 8, 6)), torch.arange(12) % 3
SPLIT = Split(IMAGES, LABELS)
DATA = DataSet("own", SPLIT, SPLIT, 3, (0.5,) * 3, (0.2,) * 3, ("a", "b", "c"))


def test_a_correct_data_set_is_kept():
    data = as_dataset(DATA, "mine")
    assert (data.name, data.num_classes, data.classes, data.mean) == ("own", 3, ("a", "b", "c"), (0.5,) * 3)
    assert data.train.images is IMAGES
    assert torch.equal(data.test.labels, LABELS)
    assert as_dataset(replace(DATA, classes=()), "mine").classes == ()


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8])
def test_numbers_become_int64(kind):
    split = Split(IMAGES, LABELS.to(kind)[:, None], (LABELS % 2).to(kind), LABELS.to(kind))
    data = as_dataset(
        replace(DATA, train=split, test=split, domains=("x", "y"), clients=["p", "q", "r"], selection=split), "mine"
    )
    expected = (LABELS, LABELS % 2, LABELS)
    for found, numbers in zip((data.train.labels, data.train.domains, data.train.clients), expected, strict=True):
        assert found.dtype == torch.int64
        assert torch.equal(found, numbers)
    assert data.test.labels.dtype == data.test.domains.dtype == data.selection.labels.dtype == torch.int64
    assert (data.domains, data.clients) == (("x", "y"), ("p", "q", "r"))


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"test": Split(IMAGES / 255, LABELS)}, "SHAPE", ["test images", "float32", "uint8"]),
        ({"train": Split(IMAGES.numpy(), LABELS)}, "SHAPE", ["train images", "numpy.ndarray", "tensor"]),
        ({"test": Split(IMAGES[:, :, 1:], LABELS)}, "SHAPE", ["test images", "[3, 7, 6]", "[3, 8, 6]"]),
        ({"test": Split(IMAGES[:0], LABELS[:0])}, "SHAPE", ["test images", "[0, 3, 8, 6]"]),
        ({"test": Split(IMAGES, LABELS + 1)}, "LABELS", ["test labels", "3 in row 2", "0 to 2"]),
        ({"train": Split(IMAGES, LABELS / 1)}, "LABELS", ["train labels", "float32"]),
        ({"train": Split(IMAGES, LABELS[1:])}, "LABELS", ["train labels", "12 images"]),
        ({"classes": ("a", "b")}, "CLASSES", ["num_classes 3", "2 names"]),
        ({"classes": ("a", "b", "b")}, "CLASSES", ["twice"]),
        ({"num_classes": 1, "classes": ()}, "CLASSES", ["num_classes 1"]),
        ({"mean": (0.5,)}, "NORMALISATION", ["(0.5,)", "3 values"]),
        ({"std": (0.2, 0.2, 0.0)}, "NORMALISATION", ["above 0"]),
        ({"train": Split(IMAGES, LABELS, LABELS), "domains": ("x", "y", "z")}, "INCOMPLETE", ["domain_test"]),
        ({"train": Split(IMAGES, LABELS, clients=LABELS), "clients": ("x", "y")}, "LABELS", ["client_train", "0 to 1"]),
        ({"selection": Split(IMAGES, LABELS + 1)}, "LABELS", ["selection labels"]),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_parts_that_do_not_fit_are_a_sentence(changes, code, words):
    with raises(f"FEDAF-DATA-{code}") as error:
        as_dataset(replace(DATA, **changes), "mine")
    assert all(word in str(error.value) for word in ["DataSet" if code != "CLASSES" else "", *words]), error.value


def test_the_data_set_of_a_specification_is_checked_too(tmp_path, monkeypatch):
    made = replace(DATA, train=Split(IMAGES, LABELS.int()), test=Split(IMAGES, torch.from_numpy(np.arange(12) % 3)))
    register(monkeypatch, DatasetSpec((3, 8, 6), 3, DATA.mean, DATA.std, name="made", load=lambda _: made))
    assert catalog.load("made", tmp_path).train.labels.dtype == torch.int64
