"""Custom image folders."""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedaf.data import catalog
from fedaf.data.readers import images
from fedaf.data.storage import cache
from support.datafiles import pixels, png, write_tree
from support.errors import raises


def load(folder, **options):
    return catalog.load(f"folder:{folder}", Path("unused"), **options)


def test_folders_are_classes_and_a_fifth_of_each_is_for_testing(tmp_path):
    write_tree(tmp_path, {"dog": 20, "cat": 10, "ant": 3})
    data = load(tmp_path)
    assert data.classes == ("ant", "cat", "dog")
    assert data.num_classes == 3
    assert data.train.labels.bincount().tolist() == [2, 8, 16]
    assert data.test.labels.bincount().tolist() == [1, 2, 4]
    assert data.domains == ()
    assert data.train.domains is None
    assert data.mean == (0.5, 0.5, 0.5)
    files = {np.asarray(Image.open(path)).tobytes() for path in tmp_path.rglob("*.png")}
    assert {i.permute(1, 2, 0).numpy().tobytes() for s in (data.train, data.test) for i in s.images} == files


def test_a_class_always_keeps_images_to_train_with(tmp_path):
    write_tree(tmp_path, {"one": 1, "two": 2, "many": 9})
    data = load(tmp_path)
    assert data.train.labels.bincount().tolist() == [7, 1, 2]


def test_images_of_different_sizes_are_resized_with_a_warning(tmp_path, caplog):
    for number in range(10):
        png(tmp_path / "cat" / f"{number}.png", pixels(20 + number, 30, 3))
        png(tmp_path / "dog" / f"{number}.png", pixels(20, 30, 3))
    assert load(tmp_path).train.images.shape[1:] == (3, 64, 64)
    assert [text for text in caplog.messages if "64 x 64" in text and "data.image_size" in text] == caplog.messages
    caplog.clear()
    assert load(tmp_path, image_size=16).train.images.shape[1:] == (3, 16, 16)
    assert caplog.messages == []


def test_domains_hold_classes(tmp_path):
    write_tree(tmp_path, {"south/cat": 10, "south/dog": 5, "north/cat": 20, "north/eel": 5})
    data = load(tmp_path)
    assert data.domains == ("north", "south")
    assert data.classes == ("cat", "dog", "eel")
    assert data.train.domains.bincount().tolist() == [20, 12]
    assert data.test.labels[data.test.domains == 1].bincount().tolist() == [2, 1]


def test_train_and_test_are_taken_as_they_are(tmp_path):
    write_tree(tmp_path / "train", {"cat": 4, "dog": 3})
    write_tree(tmp_path / "test", {"cat": 2})
    data = load(tmp_path)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 3
    assert data.test.labels.tolist() == [0] * 2
    assert np.array_equal(
        data.train.images[4].permute(1, 2, 0), np.asarray(Image.open(tmp_path / "train" / "dog" / "000.png"))
    )


def test_train_and_test_may_hold_domains(tmp_path):
    write_tree(tmp_path / "train", {"a/cat": 4, "b/dog": 3})
    write_tree(tmp_path / "test", {"b/cat": 2})
    data = load(tmp_path)
    assert data.train.domains.tolist() == [0] * 4 + [1] * 3
    assert data.test.domains.tolist() == [1] * 2


def test_a_class_may_be_called_train(tmp_path):
    write_tree(tmp_path, {"bus": 10, "train": 10})
    assert load(tmp_path).classes == ("bus", "train")


def test_the_split_is_that_of_the_names_not_of_the_file_system(tmp_path):
    write_tree(tmp_path / "a", {"cat": 30, "dog": 30})
    first = load(tmp_path / "a")
    for path in sorted((tmp_path / "a").rglob("*.png"), reverse=True):
        copy = tmp_path / "b" / path.relative_to(tmp_path / "a")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    second = load(tmp_path / "b")
    assert np.array_equal(first.test.images, second.test.images)
    assert np.array_equal(first.train.images, second.train.images)


def test_other_files_are_ignored_and_counted(tmp_path, caplog):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    (tmp_path / "cat" / ".hidden.png").write_bytes(b"x")
    (tmp_path / "cat" / "notes.txt").write_text("x")
    (tmp_path / "README").write_text("x")
    (tmp_path / "cat" / "000.png").rename(tmp_path / "cat" / "000.PNG")
    with caplog.at_level(logging.INFO, "fedaf"):
        data = load(tmp_path)
    assert len(data.train) + len(data.test) == 10
    assert "3 files" in caplog.text


def test_a_link_to_a_folder_above_has_an_end(tmp_path):
    write_tree(tmp_path, {"a/cat": 5, "a/dog": 5})
    os.symlink(tmp_path, tmp_path / "a" / "cat" / "up")
    data = load(tmp_path)
    assert len(data.train) + len(data.test) == 10


def test_a_link_that_leads_nowhere_is_unreadable(tmp_path):
    write_tree(tmp_path, {"cat": 50, "dog": 50})
    os.symlink(tmp_path / "nowhere", tmp_path / "cat" / "link.png")
    assert load(tmp_path).unreadable == ("cat/link.png",)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    data = load(tmp_path)
    assert len(data.train) + len(data.test) == 10


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((8, 8, 3), None, (3, 8, 8)),
        ((8, 12), None, (1, 8, 12)),
        ((64, 64), None, (1, 64, 64)),
        ((20, 65, 3), None, (3, 64, 64)),
        ((8, 8, 3), 16, (3, 16, 16)),
        ((8, 12), 16, (1, 16, 16)),
    ],
)
def test_small_images_of_one_size_keep_it(tmp_path, shape, size, expected):
    write_tree(tmp_path, {"cat": 5, "dog": 5}, shape=shape)
    assert tuple(load(tmp_path, image_size=size).train.images.shape[1:]) == expected


def test_large_images_are_decoded_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "_MEMORY", 2 * 3 * 16 * 16)
    write_tree(tmp_path, {"cat": 3, "dog": 3})
    seen = []
    load(tmp_path, image_size=16, progress=lambda done, _: seen.append(done))
    assert seen == [2, 4, 6]


def test_images_of_several_sizes_are_resized(tmp_path):
    write_tree(tmp_path, {"cat": 5}, shape=(8, 8, 3))
    write_tree(tmp_path, {"dog": 5}, shape=(9, 8, 3))
    assert tuple(load(tmp_path).train.images.shape[1:]) == (3, 64, 64)


def test_one_colour_image_makes_all_of_them_coloured(tmp_path):
    write_tree(tmp_path, {"cat": 5}, shape=(8, 8))
    write_tree(tmp_path, {"dog": 5}, shape=(8, 8, 3))
    data = load(tmp_path)
    assert data.train.images.shape[1] == 3
    cat = data.train.images[data.train.labels == 0]
    assert bool((cat[:, 0] == cat[:, 1]).all())


def test_sizes_are_kept_apart_in_the_cache(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    for size in (16, None, 16):
        assert load(tmp_path, image_size=size).train.images.shape[2] == (size or 8)
    assert len(list(cache.folder().glob("*.npz"))) == 2


def test_an_added_image_is_seen(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    load(tmp_path)
    png(tmp_path / "cat" / "new.png", pixels(8, 8, 3))
    data = load(tmp_path)
    assert len(data.train) + len(data.test) == 11
    assert len(list(cache.folder().glob("*.npz"))) == 1


def test_progress_counts_to_the_last_file(tmp_path):
    write_tree(tmp_path, {"cat": 60, "dog": 60})
    seen = []
    load(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (120, 120)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_unreadable_images_are_left_out_and_named(tmp_path, caplog):
    write_tree(tmp_path, {"cat": 50, "dog": 50})
    before = load(tmp_path)
    broken = tmp_path / "cat" / "007.png"
    broken.write_bytes(broken.read_bytes()[:60])
    for _ in range(2):  # the second time from the converted copy
        caplog.clear()
        data = load(tmp_path)
        assert data.unreadable == ("cat/007.png",)
        assert len(data.train) + len(data.test) == 99
        assert len(data.train.labels) == len(data.train.images)
        assert "1 of the 100 image files" in caplog.text
        assert "cat/007.png: " in caplog.text
    kept = {image.numpy().tobytes() for image in data.test.images}
    assert kept <= {image.numpy().tobytes() for image in before.test.images}


def test_unreadable_images_whose_printed_names_are_the_same_are_all_counted(tmp_path):
    write_tree(tmp_path, {"cat": 10, "dog": 10})
    for name in ("a\x01.png", "a\x02.png"):
        (tmp_path / "cat" / name).write_text("no image")
    assert load(tmp_path, max_unreadable=0.1).unreadable == ("cat/a?.png", "cat/a?.png")


def test_too_many_unreadable_images_are_an_error_unless_allowed(tmp_path):
    write_tree(tmp_path, {"cat": 20, "dog": 20})
    for name in ("003", "004"):
        (tmp_path / "dog" / f"{name}.png").write_text("no image")
    for _ in range(2):
        with raises("FEDAF-DATA-UNREADABLE") as error:
            load(tmp_path)
        words = ["2 of the 40", "5.0%", "1.0%", "data.max_unreadable", "dog/003.png: "]
        assert all(word in str(error.value) for word in words), error.value
    assert load(tmp_path, max_unreadable=0.05).unreadable == ("dog/003.png", "dog/004.png")


def test_no_readable_image_is_an_error_whatever_is_allowed(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    for path in tmp_path.rglob("*.png"):
        path.write_text("no image")
    with raises("FEDAF-DATA-UNREADABLE") as error:
        load(tmp_path, max_unreadable=1.0)
    assert all(word in str(error.value) for word in ("8 image files", "train", ".png: "))


BAD = {
    "nothing": ({}, [], ["png"]),
    "one class": ({"cat": 9}, [], ["'cat'"]),
    "images without a class": ({"": 3}, [], ["CLASS/IMAGE", "000.png"]),
    "mixed depths": ({"cat": 3, "north/dog": 3}, [], ["CLASS/IMAGE", "cat/", "north/dog/"]),
    "too deep": ({"a/b/c": 3}, [], ["CLASS/IMAGE", "a/b/c/"]),
    "too few to test with": ({"cat": 1, "dog": 2}, [], ["train/ and test/"]),
    "train without test": ({"train/cat": 3, "train/dog": 3}, [], ["train/", "test/"]),
    "test without train": ({"test/cat": 3, "test/dog": 3}, [], ["train/", "test/"]),
    "a class only in test": ({"train/a": 3, "train/b": 3, "test/c": 3}, [], ["class 'c'", "no training images"]),
    "a domain only in test": (
        {"train/x/a": 3, "train/x/b": 3, "test/y/a": 3},
        [],
        ["domain 'y'", "no training images"],
    ),
    "domains only in train": ({"train/x/a": 3, "train/x/b": 3, "test/a": 3}, [], ["train/ and test/"]),
    "an empty test": ({"train/a": 3, "train/b": 3}, ["test"], ["test holds", "png"]),
}
OF_CLASSES = {"one class", "a class only in test", "a domain only in test"}


@pytest.mark.parametrize("case", BAD)
def test_a_folder_that_is_no_data_set_is_a_sentence(tmp_path, case):
    counts, empty, words = BAD[case]
    write_tree(tmp_path, counts)
    for name in empty:
        (tmp_path / name).mkdir()
    with raises("FEDAF-DATA-CLASSES" if case in OF_CLASSES else "FEDAF-DATA-LAYOUT") as error:
        load(tmp_path)
    assert all(word in str(error.value) for word in [str(tmp_path), *words]), error.value
    assert "\n" not in str(error.value)


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path):
    with raises("FEDAF-DATA-NOT-FOUND") as error:
        load(tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in str(error.value)
    with raises("FEDAF-DATA-READ"):
        load("x" * 5000)
    with raises("FEDAF-DATA-IMAGE-SIZE"):
        load(tmp_path, image_size=0)
    with raises("FEDAF-DATA-NAME"):
        catalog.check_name("folder:")


def test_strange_names_can_be_printed(tmp_path, caplog):
    write_tree(tmp_path, {"a\nb": 60, "dog": 60})
    (tmp_path / "a\nb" / "000.png").write_text("no image")
    data = load(tmp_path)
    assert data.classes == ("a?b", "dog")
    assert data.unreadable == ("a?b/000.png",)
