"""Labels as they come: numbers from 0 or 1, names, columns, and mistakes."""

import numpy as np
import pytest
import torch

from fedaf.data.labels import note_missing, one_per_image, resolve
from support.errors import raises


@pytest.mark.parametrize(
    "values", [np.array([0, 2, 1]), np.array([[0], [2], [1]], np.uint8), np.array([0.0, 2.0, 1.0]).astype(">i2")]
)
def test_whole_numbers_of_any_type_are_labels(values):
    found = one_per_image("y", values, 3)
    assert found.tolist() == [0, 2, 1]
    assert found.dtype == np.int64


def test_names_stay_names():
    assert one_per_image("y", np.array(["b", "a"]), 2).tolist() == ["b", "a"]
    assert one_per_image("y", np.array([[b"b"], [b"a"]]), 2).tolist() == ["b", "a"]
    assert one_per_image("y", np.array([True, False]), 2).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((3, 4), int), ["int64 [3, 4]", "multi-label", "argmax(1)"]),
        (np.zeros(2, int), ["int64 [2]", "3 images"]),
        (np.array([0, 1, -1]), ["int64 [3]", "-1 in row 2"]),
        (np.array([0, 1.5, 2]), ["float64 [3]", "1.5 in row 1"]),
        (np.array([0, 1, np.nan]), ["float64 [3]", "nan in row 2"]),
        (np.array([0.0, 1, 2]), ["float64 [3]", "astype(int)"]),
        (np.array([2**64 - 1, 0, 0], np.uint64), ["uint64 [3]", "18446744073709551615 in row 0"]),
        (np.array([0, 1, 2], "M8[D]"), ["datetime64[D] [3]"]),
    ],
    ids=lambda given: "" if isinstance(given, list) else None,
)
def test_an_error_says_what_was_found_and_where(values, words):
    with raises("FEDAF-DATA-LABELS") as error:
        one_per_image("y_train in own.npz", values, 3)
    assert all(word in str(error.value) for word in ["y_train in own.npz is", *words]), error.value


def test_labels_from_one_are_shifted_and_keep_their_names(caplog):
    (train, test), names = resolve("label", {"y_train": np.array([1, 2, 3]), "y_test": np.array([3, 1])})
    assert (train.tolist(), test.tolist(), names) == ([0, 1, 2], [2, 0], ("1", "2", "3"))
    assert "y_train and the other labels are 1 to 3; they become 0 to 2" in caplog.text


def test_labels_from_one_are_shifted_only_if_the_names_agree():
    given = {"y_train": np.array([1, 2, 1]), "y_test": np.array([2])}
    assert resolve("label", given, ["a", "b"])[0][0].tolist() == [0, 1, 0]
    assert resolve("label", given, ["a", "b", "c"])[0][0].tolist() == [1, 2, 1]
    assert resolve("label", given, count=3)[0][0].tolist() == [1, 2, 1]
    assert resolve("domain", given)[0][0].tolist() == [1, 2, 1]


def test_names_become_numbers_in_order():
    given = {"y_train": np.array(["dog", "cat"]), "y_test": np.array(["cat"])}
    (train, test), names = resolve("label", given)
    assert (train.tolist(), test.tolist(), names) == ([1, 0], [0], ("cat", "dog"))
    assert resolve("label", given, ["dog", "eel", "cat"])[0][0].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("train", "test", "names", "words"),
    [
        (["dog", "cat"], ["eel"], ["cat", "dog"], ["y_test", "'eel' in row 0", "cat, dog"]),
        (["dog", ""], ["dog"], [], ["y_train", "empty", "row 1"]),
        (["dog", "cat"], [0], [], ["y_test has numbers"]),
        ([0, 1, 1], [0, 3], [], ["y_test", "label 3 in row 1", "0 to 1", "no training image"]),
        ([0, 1, 2], [0], ["a", "b"], ["y_train", "label 2 in row 2", "0 to 1"]),
    ],
)
def test_labels_that_do_not_fit_are_named(train, test, names, words):
    with raises("FEDAF-DATA-LABELS") as error:
        resolve("label", {"y_train": np.array(train), "y_test": np.array(test)}, names)
    assert all(word in str(error.value) for word in words), error.value


def test_clients_may_have_any_numbers():
    (clients,), names = resolve("client", {"client_train": np.array([7001, 12, 7001])})
    assert (clients.tolist(), names) == ([1, 0, 1], ("12", "7001"))


def test_classes_without_training_images_are_said(caplog):
    note_missing("own.npz", ["a", "b", "c", "d"], torch.tensor([0, 1]), torch.tensor([0, 2]))
    assert "own.npz: the classes c have test images, but no training images" in caplog.text
    assert "own.npz: the classes d have no images" in caplog.text
