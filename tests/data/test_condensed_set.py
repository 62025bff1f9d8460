"""A condensed set in a file is read as a data set, pixel by pixel as the server had it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaf.data import catalog
from fedaf.data.condensed_set import CondensedSet, to_bytes
from fedaf.data.dataset import with_test
from support.errors import raises

FORMATS = ("npz", "parquet")


def a_set(channels: int = 1, side: int = 8, weights: bool = True) -> CondensedSet:
    """Twelve images of two clients; the middle one of three classes has none."""
    draws = torch.Generator().manual_seed(channels)
    images = torch.randint(0, 256, (12, channels, side, side), dtype=torch.uint8, generator=draws)
    return CondensedSet(
        images,
        torch.tensor([2, 0] * 6),
        ("cat", "cow", "dog"),
        ("north",) * 4 + ("south",) * 8,
        torch.arange(12) // 6 + 1,
        torch.linspace(1, 2, 12, dtype=torch.float64) if weights else None,
    )


def written(folder: Path, condensed: CondensedSet, format: str) -> str:
    file = folder / f"set.{format}"
    file.write_bytes(to_bytes(condensed, format))
    return f"{format}:{file}"


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_labels_and_names_survive_a_file(format, channels, tmp_path):
    condensed = a_set(channels)
    data = catalog.load(written(tmp_path, condensed, format), tmp_path, needs_test=False)
    assert torch.equal(data.train.images, condensed.images)
    assert torch.equal(data.train.labels, condensed.labels)
    assert data.classes == condensed.classes
    assert [data.clients[number] for number in data.train.clients.tolist()] == list(condensed.clients)
    assert len(data.test) == 0


def test_colour_images_that_are_grey_stay_in_colour(tmp_path):
    grey = a_set(3)
    grey = replace(grey, images=grey.images[:, :1].repeat(1, 3, 1, 1))
    data = catalog.load(written(tmp_path, grey, "parquet"), tmp_path, needs_test=False)
    assert torch.equal(data.train.images, grey.images)


def test_images_of_more_than_64_pixels_are_not_resized_if_their_size_is_given(tmp_path):
    large = a_set(1, side=80)
    data = catalog.load(written(tmp_path, large, "parquet"), tmp_path, image_size=80, needs_test=False)
    assert torch.equal(data.train.images, large.images)


def test_rounds_and_weights_are_in_the_file_and_no_warning_is_given_for_them(tmp_path, caplog):
    condensed = a_set()
    name = written(tmp_path, condensed, "npz")
    with np.load(name.removeprefix("npz:"), allow_pickle=False) as arrays:
        assert arrays["round_train"].tolist() == condensed.rounds.tolist()
        assert arrays["weight_train"].tolist() == condensed.weights.tolist()
        assert "x_test" not in arrays
    catalog.load(name, tmp_path, needs_test=False)
    assert "not used" not in caplog.text
    assert b"weight" not in to_bytes(a_set(weights=False), "npz")


def test_a_set_without_a_test_split_is_refused_unless_none_is_needed(tmp_path):
    name = written(tmp_path, a_set(), "npz")
    with raises("FEDAF-DATA-NO-TEST") as refused:
        catalog.load(name, tmp_path)
    assert "--test-dataset" in str(refused.value)


def test_a_parquet_file_is_split_if_a_test_split_is_needed(tmp_path):
    name = written(tmp_path, a_set(), "parquet")
    whole = catalog.load(name, tmp_path, needs_test=False)
    split = catalog.load(name, tmp_path)
    assert (len(whole.train), len(whole.test)) == (12, 0)
    assert (len(split.train), len(split.test)) == (10, 2)


def test_parquet_holds_one_or_three_channels():
    with raises("FEDAF-EXPORT-CHANNELS") as refused:
        to_bytes(a_set(2), "parquet")
    assert "npz" in str(refused.value)
    assert to_bytes(a_set(2), "npz")


def test_an_unknown_format_is_refused():
    with raises("FEDAF-EXPORT-FORMAT") as refused:
        to_bytes(a_set(), "npy")
    assert "npz" in str(refused.value)


def test_the_test_split_and_the_normalisation_are_those_of_the_other_data_set():
    digits = catalog.load("digits", Path("data"))
    train = replace(digits, name="mine", mean=(0.5,), std=(0.25,), test=digits.train)
    found = with_test(train, digits)
    assert (found.mean, found.std) == (digits.mean, digits.std)
    assert torch.equal(found.test.images, digits.test.images)
    assert torch.equal(found.train.images, train.train.images)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"classes": tuple("1032456789")}, "classes"),
        ({"classes": tuple("abc"), "num_classes": 3}, "classes"),
        ({"train": "wide"}, "shape"),
    ],
)
def test_other_classes_or_shapes_cannot_be_tested_on(change, word):
    digits = catalog.load("digits", Path("data"))
    if change.get("train"):
        change = {"train": replace(digits.train, images=digits.train.images.repeat(1, 1, 1, 2))}
    with raises("FEDAF-DATA-TEST") as refused:
        with_test(replace(digits, **change), digits)
    assert word in str(refused.value)
