"""Data from Python: arrays, tensors, torch data sets and clients' sets."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from fedaf.data import catalog
from fedaf.data.in_memory import as_dataset, as_images, name_of
from support.datafiles import pixels
from support.errors import raises

X, Y = pixels(12, 8, 6, 3), np.arange(12) % 3
X_TEST, Y_TEST = pixels(6, 8, 6, 3, seed=1), np.arange(6) % 3


class Items(Dataset):
    """A torch data set of any items."""

    def __init__(self, items, classes=None):
        self.items = list(items)
        if classes:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        return self.items[number]


def of_arrays(images=X, labels=Y):
    return Items([(Image.fromarray(image), int(label)) for image, label in zip(images, labels, strict=True)])


TRAIN_AND_TEST = {
    "arrays": (X, Y, X_TEST, Y_TEST),
    "tensors": tuple(map(torch.from_numpy, (X, Y, X_TEST, Y_TEST))),
    "channels first": (X.transpose(0, 3, 1, 2), Y[:, None], X_TEST.transpose(0, 3, 1, 2), Y_TEST.tolist()),
    "floats": (X / 255, Y, (X_TEST / 255).astype(np.float32), Y_TEST),
    "pairs as Keras has them": ((X, Y), (X_TEST, Y_TEST)),
    "a dict of arrays": {"x_train": X, "y_train": Y, "x_test": X_TEST, "y_test": Y_TEST},
    "a dict as MedMNIST has it": dict(
        zip(("train_images", "train_labels", "test_images", "test_labels"), (X, Y, X_TEST, Y_TEST), strict=True)
    ),
    "torch data sets": (of_arrays(), of_arrays(X_TEST, Y_TEST)),
    "a dict of torch data sets": {"train": of_arrays(), "test": of_arrays(X_TEST, Y_TEST)},
    "a TensorDataset of floats": tuple(
        TensorDataset(torch.from_numpy(x).permute(0, 3, 1, 2) / 255, torch.from_numpy(y))
        for x, y in ((X, Y), (X_TEST, Y_TEST))
    ),
    "items that are dicts": tuple(
        Items([{"image": image, "label": label} for image, label in zip(x, y, strict=True)])
        for x, y in ((X, Y), (X_TEST, Y_TEST))
    ),
    "a data set of both": (of_arrays(), (X_TEST, Y_TEST)),
}


@pytest.mark.parametrize("form", TRAIN_AND_TEST)
def test_every_form_gives_the_same_data(form):
    data = as_dataset(TRAIN_AND_TEST[form], "python:mine")
    assert np.array_equal(data.train.images.numpy(), X.transpose(0, 3, 1, 2))
    assert np.array_equal(data.test.images.numpy(), X_TEST.transpose(0, 3, 1, 2))
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == (Y.tolist(), Y_TEST.tolist())
    assert data.train.labels.dtype == torch.int64
    assert (data.name, data.num_classes, data.classes) == ("python:mine", 3, ("0", "1", "2"))
    assert (data.mean, data.clients) == ((0.5, 0.5, 0.5), ())


CLIENT_SETS = {"oslo": (X[:4], Y[:4]), "rome": of_arrays(X[4:], Y[4:])}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"clients": CLIENT_SETS, "test": (X_TEST, Y_TEST)}, ("oslo", "rome")),
        ((CLIENT_SETS, (X_TEST, Y_TEST)), ("oslo", "rome")),
        ((list(CLIENT_SETS.values()), (X_TEST, Y_TEST)), ("client-0", "client-1")),
    ],
)
def test_the_sets_of_clients_are_the_natural_clients(given, names):
    data = as_dataset(given, "mine")
    assert data.clients == names
    assert data.train.clients.tolist() == [0] * 4 + [1] * 8
    assert np.array_equal(data.train.images.numpy(), X.transpose(0, 3, 1, 2))
    assert len(data.test) == 6


def test_names_domains_and_clients_may_be_in_a_dict():
    given = TRAIN_AND_TEST["a dict of arrays"] | {
        "y_train": np.array(list("cab") * 4, object),
        "y_test": np.array(list("ab") * 3),
        "domain_train": ["x", "y"] * 6,
        "domain_test": ["y", "x"] * 3,
        "client_train": torch.arange(12) // 6,
        "clients": ["left", "right"],
    }
    data = as_dataset(given, "mine")
    assert (data.classes, data.train.labels[:3].tolist()) == (("a", "b", "c"), [2, 0, 1])
    assert (data.domains, data.test.domains.tolist()) == (("x", "y"), [1, 0] * 3)
    assert (data.clients, data.train.clients.tolist()) == (("left", "right"), [0] * 6 + [1] * 6)


def test_a_torch_data_set_names_its_classes():
    pairs = [(image, int(label)) for image, label in zip(X, Y, strict=True)]
    data = as_dataset((Items(pairs, ["a", "b", "c"]), Items(pairs)), "mine")
    assert data.classes == ("a", "b", "c")


def animals(labels, classes=None):
    """A set of images whose label is known from their first pixel, with its own class numbers."""
    return Items([(X[number], label) for number, label in enumerate(labels)], classes)


@pytest.mark.parametrize("wrapped", [False, True])
def test_sets_that_number_their_classes_differently_are_joined_by_name(wrapped):
    sets = {"a": animals([0, 1], ["cat", "dog"]), "b": animals([0, 1, 0], ["bird", "cat"])}
    if wrapped:
        sets = {name: Subset(each, range(len(each))) for name, each in sets.items()}
    data = as_dataset({"clients": sets, "test": animals([0, 1, 2], ["dog", "cat", "eel"])}, "mine")
    assert data.classes == ("cat", "dog", "bird", "eel")
    assert [data.classes[label] for label in data.train.labels] == ["cat", "dog", "bird", "cat", "bird"]
    assert [data.classes[label] for label in data.test.labels] == ["dog", "cat", "eel"]


def test_a_test_set_that_numbers_its_classes_differently_is_joined_by_name():
    data = as_dataset((animals([0, 1, 2], ["ant", "bee", "cow"]), animals([0, 1, 1], ["bee", "cow"])), "mine")
    assert data.classes == ("ant", "bee", "cow")
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1, 2], [1, 2, 2])


def test_names_as_labels_and_numbers_with_class_names_are_joined():
    sets = [animals(["cat", "dog"]), animals([0, 1], ["dog", "cat"])]
    data = as_dataset((sets, animals(["dog"])), "mine")
    assert (data.classes, data.train.labels.tolist(), data.test.labels.tolist()) == (("dog", "cat"), [1, 0, 0, 1], [0])


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([animals([0, 1], ["a", "b"]), animals([0, 1], ["b", "a"]), animals([0, 1])], ["client client-2", "'classes'"]),
        ([animals([0, 1]), animals(["a", "b"])], ["client client-0", "without class names"]),
        ([animals([0, 1], ["a", "b"]), animals([0, 2], ["b", "a"])], ["client client-1", "2 in row 1", "2 classes"]),
    ],
)
def test_labels_without_a_known_name_are_refused_where_names_decide(sets, words):
    with raises("FEDAF-DATA-LABELS") as error:
        as_dataset((sets, animals([0, 1], ["a", "b"])), "mine")
    assert all(word in str(error.value) for word in words), error.value


def test_a_set_that_names_a_class_twice_is_refused():
    with raises("FEDAF-DATA-CLASSES") as error:
        as_dataset((animals([0, 1], ["a", "a"]), animals([0, 1], ["a", "b"])), "mine")
    assert "train has a name twice" in str(error.value)


def test_grey_images_need_no_channel():
    assert as_images(X[..., 0], "x").shape == (12, 1, 8, 6)
    grey = Items([(Image.fromarray(image[..., 0]), int(label)) for image, label in zip(X, Y, strict=True)])
    assert as_dataset((grey, grey), "mine").train.images.shape == (12, 1, 8, 6)


def test_where_both_axes_may_be_channels_arrays_have_them_last_and_tensors_first():
    images = pixels(2, 3, 4, 4)
    assert as_images(images, "x").shape == (2, 4, 3, 4)
    assert as_images(torch.from_numpy(images), "x").shape == (2, 3, 4, 4)


def test_floats_become_the_nearest_pixel():
    values = torch.arange(256).view(1, 1, 16, 16)
    assert torch.equal(as_images(values / 255, "x"), values.to(torch.uint8))


@pytest.mark.parametrize(
    ("images", "code", "words"),
    [
        (X.astype(np.float32), "SHAPE", ["float32 [12, 8, 6, 3]", "from 0 to 255", "uint8"]),
        ((X / 255 - 0.5) / 0.25, "SHAPE", ["float64", "before normalisation"]),
        (np.full((2, 8, 8), np.nan), "SHAPE", ["nan"]),
        (X.astype(np.int64), "SHAPE", ["int64", "astype('uint8')"]),
        (X.astype(np.uint16), "SHAPE", ["expected uint8"]),
        (X.reshape(12, -1), "TABLE", ["[12, 144]", "not supported"]),
        (pixels(2, 8, 8, 8), "SHAPE", ["[2, 8, 8, 8]", "channels"]),
        (pixels(2, 1, 8, 8, 1), "SHAPE", ["[2, 1, 8, 8, 1]"]),
        (np.array([["a"]]), "SHAPE", ["<U1"]),
        (X[:0], "SHAPE", ["[0, 8, 6, 3]"]),
    ],
    ids=lambda given: "" if isinstance(given, list) else None,
)
def test_images_that_do_not_fit_are_a_sentence(images, code, words):
    with raises(f"FEDAF-DATA-{code}") as error:
        as_images(images, "x_train")
    assert all(word in str(error.value) for word in ["x_train", *words]), error.value


class Endless(IterableDataset):
    def __iter__(self):
        return iter([])


class Broken(Items):
    def __getitem__(self, number):
        raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (3, "FORM", ["int", "(x_train, y_train, x_test, y_test)"]),
        ((X, Y), "FORM", ["ndarray", "torch Dataset"]),
        ((X, Y, X_TEST), "FORM", ["tuple of 3"]),
        ({"x": X}, "FORM", ["keys x"]),
        ((of_arrays(), Endless()), "FORM", ["test is a Endless", "with a length"]),
        ((of_arrays(), Items([])), "FORM", ["test is empty"]),
        (([], of_arrays()), "FORM", ["list of sets"]),
        ((Broken([1]), of_arrays()), "ITEM", ["item 0 of train", "the disk is gone"]),
        ((Items([1]), of_arrays()), "ITEM", ["item 0 of train", "int", "(image, label)"]),
        ((Items([(X[0], 0.5)]), of_arrays()), "LABELS", ["item 0 of train", "0.5"]),
        ((Items([("a.png", 0)]), of_arrays()), "SHAPE", ["item 0 of train", "str"]),
        ((Items([(X[0], 0), (X[0, 1:], 1)]), of_arrays()), "SHAPE", ["item 1 of train", "[3, 7, 6]", "[3, 8, 6]"]),
        ((X, Y, X_TEST[:, 1:], Y_TEST), "SHAPE", ["[3, 8, 6]", "[3, 7, 6]"]),
        ((X, Y[:5], X_TEST, Y_TEST), "LABELS", ["y_train", "int64 [5]", "12 images"]),
        ((X, Y * 0, X_TEST, Y_TEST * 0), "CLASSES", ["one class"]),
        ({**TRAIN_AND_TEST["a dict of arrays"], "domains": ["a"]}, "INCOMPLETE", ["domains", "domain_train"]),
        (([(X, Y), (X[:, 1:], Y)], (X, Y)), "SHAPE", ["client-1", "client-0"]),
    ],
    ids=lambda given: "" if isinstance(given, list) else None,
)
def test_data_that_do_not_fit_are_a_sentence(given, code, words):
    with raises(f"FEDAF-DATA-{code}") as error:
        as_dataset(given, "mine")
    assert all(word in str(error.value) for word in words), error.value


def test_a_name_says_what_was_given():
    assert name_of((X, Y, X, Y)) == "python:numpy.ndarray"
    assert name_of({"clients": [of_arrays()], "test": of_arrays()}).endswith(".Items")


MODULE = """
import numpy as np
IMAGES = np.arange(10 * 64).reshape(10, 8, 8) % 256

def arrays():
    return IMAGES.astype(np.uint8), np.arange(10) % 2, IMAGES.astype(np.uint8), np.arange(10) % 2

def of_folder(data_dir):
    (data_dir / "seen").touch()
    return arrays()

def broken():
    raise RuntimeError("no such study")

def nothing():
    return None
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_factories.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_factories"
    sys.modules.pop("own_factories", None)


def test_a_function_of_a_module_returns_data(module, tmp_path):
    data = catalog.load(f"{module}:arrays", Path("unused"))
    assert (len(data.train), data.num_classes, data.name) == (10, 2, f"{module}:arrays")
    assert catalog.find_spec(f"{module}:arrays") is None
    assert len(catalog.load(f"{module}:of_folder", tmp_path).train) == 10
    assert (tmp_path / "seen").exists()
    with raises("FEDAF-DATA-IMAGE-SIZE"):
        catalog.load(f"{module}:arrays", tmp_path, image_size=16)


@pytest.mark.parametrize(("name", "code"), [("broken", "FACTORY"), ("nothing", "FORM"), ("IMAGES", "SPEC")])
def test_a_function_that_returns_no_data_is_named(module, tmp_path, name, code):
    with raises(f"FEDAF-DATA-{code}") as error:
        catalog.load(f"{module}:{name}", tmp_path)
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("some/file.npz", ["npz:some/file.npz"]),
        ("some/folder", ["folder:some/folder"]),
        ("some/file.parquet", ["parquet:some/file.parquet"]),
        ("table.csv", ["tables are not supported"]),
    ],
)
def test_a_path_without_a_prefix_gets_a_suggestion(tmp_path, name, words):
    with raises("FEDAF-DATA-SET-UNKNOWN") as error:
        catalog.load(name, tmp_path)
    assert all(word in str(error.value) for word in words)
