"""The images for tuning and those to choose the best model by are taken from the training images."""

import torch

import fedaf
from fedaf.data.catalog import load
from fedaf.data.dataset import with_selection, with_validation
from support.errors import raises
from support.small import SMALL


def test_held_out_images_are_training_images_and_nobody_trains_on_them(tmp_path):
    whole = load("digits", tmp_path)
    data = with_validation(whole, 300)
    assert (len(data.train), len(data.test)) == (len(whole.train) - 300, 300)
    together = torch.cat([data.train.images, data.test.images]).flatten(1)
    originals = sorted(map(tuple, whole.train.images.flatten(1).tolist()))
    assert sorted(map(tuple, together.tolist())) == originals
    assert data.test.labels.bincount(minlength=10).min() > 10


def test_they_are_always_the_same(tmp_path):
    first, again = (with_validation(load("digits", tmp_path), 50) for _ in range(2))
    assert torch.equal(first.test.images, again.test.images)
    assert torch.equal(first.train.labels, again.train.labels)


def test_more_than_there_are_is_refused(tmp_path):
    whole = load("digits", tmp_path)
    with raises("FEDAF-DATA-VALIDATION") as error:
        with_validation(whole, 5000)
    assert all(word in str(error.value) for word in ("5000", "digits", str(len(whole.train))))


def test_a_result_says_what_it_was_tested_on():
    settings = {**SMALL["settings"], "data.validation": 100}
    found = fedaf.run(method="fedavg", **{**SMALL, "rounds": 1, "settings": settings}, local_epochs=1)
    assert found.figures["tested_on"] == "100 held-out training images"
    plain = fedaf.run(method="fedavg", **{**SMALL, "rounds": 1}, local_epochs=1)
    assert plain.figures["tested_on"] == "test"
    assert found.curve != plain.curve


def rows(split) -> list[tuple]:
    return sorted(map(tuple, split.images.flatten(1).tolist()))


def test_images_to_choose_by_are_neither_trained_nor_tested_on(tmp_path):
    whole = load("digits", tmp_path)
    data = with_selection(with_validation(whole, 100), 200)
    assert (len(data.train), len(data.test), len(data.selection)) == (len(whole.train) - 300, 100, 200)
    assert sorted(rows(data.train) + rows(data.test) + rows(data.selection)) == rows(whole.train)
    assert rows(with_selection(with_validation(whole, 100), 200).selection) == rows(data.selection)
    assert torch.equal(with_validation(whole, 100).test.images, data.test.images)


def test_they_are_not_those_that_are_held_out_for_tuning(tmp_path):
    whole = load("digits", tmp_path)
    assert rows(with_selection(whole, 200).selection) != rows(with_validation(whole, 200).test)


def test_more_images_to_choose_by_than_there_are_left_is_refused(tmp_path):
    data = with_validation(load("digits", tmp_path), 1000)
    with raises("FEDAF-DATA-SELECTION") as error:
        with_selection(data, 438)
    assert "438" in str(error.value)
