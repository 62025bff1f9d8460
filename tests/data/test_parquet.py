"""Parquet files as Hugging Face publishes image data sets."""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedaf.data import catalog
from fedaf.data.spec import Columns, DatasetSpec
from support.datafiles import pixels
from support.errors import raises


def load(path: Path, **options):
    return catalog.load(f"parquet:{path}", Path("unused"), **options)


def encoded(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def write(path: Path, images: np.ndarray, *, names: list[str] | None = None, **columns) -> None:
    """Write a file with an image column, and class names for the column ``label`` in its schema."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": [{"bytes": encoded(image), "path": None} for image in images], **columns})
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    if names:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=7)


def labels(count: int, classes: int = 3) -> list[int]:
    return [number % classes for number in range(count)]


@pytest.mark.parametrize("layout", ["data/{}-00000-of-00001.parquet", "{}.parquet", "default/{}/0000.parquet"])
def test_splits_are_files_and_class_names_are_in_the_schema(tmp_path, layout):
    train, test = pixels(30, 8, 8, 3), pixels(9, 8, 8, 3, seed=1)
    for part, images in (("train", train), ("test", test)):
        write(tmp_path / layout.format(part), images, names=["ant", "bee", "cow"], label=labels(len(images)))
    data = load(tmp_path)
    assert data.classes == ("ant", "bee", "cow")
    assert np.array_equal(data.train.images.permute(0, 2, 3, 1).numpy(), train)
    assert np.array_equal(data.test.images.permute(0, 2, 3, 1).numpy(), test)
    assert data.train.labels.tolist() == labels(30)


def test_shards_are_joined_in_order(tmp_path):
    images = pixels(20, 8, 8)
    for number, rows in enumerate((slice(0, 12), slice(12, 20))):
        write(tmp_path / f"train-0000{number}-of-00002.parquet", images[rows], label=labels(20)[rows])
    write(tmp_path / "test-00000-of-00001.parquet", images[:5], label=labels(5))
    data = load(tmp_path)
    assert np.array_equal(data.train.images[:, 0].numpy(), images)
    assert data.train.labels.tolist() == labels(20)


def test_names_and_numbers_in_the_files_of_one_split_are_refused(tmp_path):
    for number, found in enumerate((["cat", "dog"], [0, 1])):
        write(tmp_path / f"train-0000{number}-of-00002.parquet", pixels(20, 8, 8), label=found * 10)
    with raises("FEDAF-DATA-LABELS") as error:
        load(tmp_path)
    assert "the column label has names in some files" in str(error.value)


def test_a_file_alone_is_split_by_class(tmp_path):
    images = pixels(30, 8, 8)
    write(tmp_path / "all.parquet", images, label=labels(30))
    data = load(tmp_path / "all.parquet")
    assert data.test.labels.bincount().tolist() == [2, 2, 2]
    both = [image[0].numpy().tobytes() for split in (data.train, data.test) for image in split.images]
    assert sorted(both) == sorted(image.tobytes() for image in images)
    by_image = {image.tobytes(): label for image, label in zip(images, labels(30), strict=True)}
    assert [by_image[image[0].numpy().tobytes()] for image in data.test.images] == data.test.labels.tolist()


def test_a_validation_split_is_unused_or_replaces_the_test_split(tmp_path, caplog):
    for part, count in (("train", 12), ("validation", 6)):
        write(tmp_path / f"{part}-0.parquet", pixels(count, 8, 8), label=labels(count))
    assert len(load(tmp_path).test) == 6
    assert "its split validation is the test set" in caplog.text
    caplog.clear()
    write(tmp_path / "test-0.parquet", pixels(3, 8, 8), label=labels(3))
    assert len(load(tmp_path).test) == 3
    assert "validation-0.parquet and other files of that split are not used" in caplog.text


@pytest.mark.parametrize("name", ["all.parquet", "train-00000-of-00001.parquet", "train/0000.parquet"])
def test_a_column_is_the_split_if_no_file_is_named_as_the_test_split(tmp_path, caplog, name):
    images, split = pixels(20, 8, 8), ["train", "train", "Test", "val"] * 5
    write(tmp_path / name, images, label=labels(20), subset=split, client=list("abcd") * 5)
    data = load(tmp_path)
    for part, rows in (("train", [0, 1]), ("test", [2])):
        wanted = np.isin(np.arange(20) % 4, rows)
        assert np.array_equal(getattr(data, part).images[:, 0].numpy(), images[wanted])
        assert getattr(data, part).labels.tolist() == np.array(labels(20))[wanted].tolist()
    assert data.clients == ("a", "b")
    assert "5 images of the split validation, which are not used" in caplog.text


@pytest.mark.parametrize(("split", "counts"), [(["train", "valid"], [15, 15]), (["train"], [24, 6])])
def test_without_test_rows_validation_rows_or_a_fifth_are_the_test_set(tmp_path, split, counts):
    write(tmp_path / "a.parquet", pixels(30, 8, 8), label=labels(30), split=split * (30 // len(split)))
    data = load(tmp_path)
    assert [len(data.train), len(data.test)] == counts


def test_names_of_files_come_before_a_split_column(tmp_path, caplog):
    for part, count in (("train", 12), ("test", 6)):
        write(tmp_path / f"{part}.parquet", pixels(count, 8, 8), label=labels(count), split=["any"] * count)
    data = load(tmp_path)
    assert [len(data.train), len(data.test)] == [12, 6]
    assert caplog.text.count("the column split is not used") == 1


def test_a_column_that_is_named_for_something_else_is_not_the_split(tmp_path):
    write(tmp_path / "a.parquet", pixels(30, 8, 8), label=labels(30), subset=["x", "y"] * 15)
    assert load(tmp_path, columns=Columns(domain="subset")).domains == ("x", "y")


def test_clients_and_domains_are_columns(tmp_path):
    writers, places = [9, 10, 9, 11, 10] * 4, ["sea", "air"] * 10
    write(tmp_path / "train.parquet", pixels(20, 8, 8), label=labels(20), writer=writers, place=places)
    write(tmp_path / "test.parquet", pixels(4, 8, 8), label=labels(4), writer=writers[:4], place=places[:4])
    data = load(tmp_path, columns=Columns(client="writer", domain="place"))
    assert data.clients == ("9", "10", "11")
    assert [data.clients[number] for number in data.train.clients] == list(map(str, writers))
    assert [data.domains[number] for number in data.train.domains] == places
    assert data.test.domains.tolist() == [1, 0, 1, 0]
    plain = load(tmp_path)
    assert (plain.clients, plain.domains) == ((), ())


def test_names_are_labels_and_bytes_are_images(tmp_path):
    images = pixels(10, 8, 8)
    table = pa.table({"img": [encoded(image) for image in images], "label": ["dog", "cat"] * 5})
    pq.write_table(table, tmp_path / "train.parquet")
    pq.write_table(table.slice(0, 2), tmp_path / "test.parquet")
    data = load(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.train.labels.tolist() == [1, 0] * 5


def test_images_of_different_sizes_are_resized(tmp_path):
    content = [{"bytes": encoded(pixels(8 + number, 9)), "path": None} for number in range(10)]
    pq.write_table(pa.table({"image": content, "label": labels(10, 2)}), tmp_path / "a.parquet")
    assert load(tmp_path).train.images.shape[1:] == (1, 64, 64)
    assert load(tmp_path, image_size=16).train.images.shape[1:] == (1, 16, 16)


def test_a_site_converts_to_the_shape_of_the_federation(tmp_path):
    """Classes are matched by name, also where the schema numbers them in another order."""
    spec = DatasetSpec((3, 12, 12), 3, (0.5,) * 3, (0.25,) * 3, ("eel", "dog", "cat"))
    write(tmp_path / "names" / "train.parquet", pixels(12, 8, 8), label=["dog", "cat", "cat"] * 4)
    write(tmp_path / "numbers" / "train.parquet", pixels(12, 8, 8), names=["cat", "dog"], label=[1, 0, 0] * 4)
    for name in ("names", "numbers"):
        data = load(tmp_path / name, spec=spec)
        assert data.train.images.shape[1:] == (3, 12, 12)
        assert data.classes == spec.classes
        assert data.train.labels.bincount().tolist() == [0, 3, 6]


def test_unreadable_rows_are_named(tmp_path):
    content = [{"bytes": encoded(pixels(8, 8)), "path": None} for _ in range(20)]
    content[3], content[5] = {"bytes": None, "path": "x.png"}, {"bytes": b"no image", "path": None}
    pq.write_table(pa.table({"image": content, "label": labels(20, 2)}), tmp_path / "train.parquet")
    pq.write_table(pa.table({"image": content[6:], "label": labels(14, 2)}), tmp_path / "test.parquet")
    with raises("FEDAF-DATA-UNREADABLE") as error:
        load(tmp_path)
    assert "row 3 of train.parquet" in str(error.value)
    data = load(tmp_path, max_unreadable=0.2)
    assert data.train.labels.tolist() == [label for row, label in enumerate(labels(20, 2)) if row not in (3, 5)]


def test_unreadable_rows_of_equally_named_files_are_all_counted(tmp_path):
    content = [{"bytes": encoded(pixels(8, 8)), "path": None} for _ in range(20)]
    content[3] = {"bytes": b"no image", "path": None}
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
        pq.write_table(pa.table({"image": content, "label": labels(20, 2)}), tmp_path / part / "0000.parquet")
    data = load(tmp_path, max_unreadable=0.05)
    assert data.unreadable == ("row 3 of test/0000.parquet", "row 3 of train/0000.parquet")
    with raises("FEDAF-DATA-UNREADABLE") as error:
        load(tmp_path, max_unreadable=0.04)
    assert "2 of the 40 image files" in str(error.value)


def test_a_split_column_needs_training_rows(tmp_path):
    write(tmp_path / "a.parquet", pixels(4, 8, 8), label=labels(4), split=["test", "val"] * 2)
    with raises("FEDAF-DATA-LAYOUT") as error:
        load(tmp_path)
    assert "no rows of the split train" in str(error.value)


def test_a_split_without_rows_is_a_sentence(tmp_path):
    table = pa.table({"image": [encoded(pixels(8, 8))] * 4, "label": labels(4, 2)})
    pq.write_table(table, tmp_path / "train.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "test.parquet")
    with raises("FEDAF-DATA-LAYOUT") as error:
        load(tmp_path)
    assert "no rows of the split test" in str(error.value)


IMAGE = {"bytes": b"x", "path": None}


@pytest.mark.parametrize(
    ("columns", "code", "words"),
    [
        ({"age": [1], "label": [0]}, "TABLE", ["age, label", "not supported"]),
        ({"image": [IMAGE], "age": [1]}, "COLUMN", ["image, age", "data.label_column"]),
        ({"image": [IMAGE], "label": [[0, 1]]}, "LABELS", ["multi-label"]),
        ({"image": [IMAGE], "label": [None]}, "LABELS", ["row 0"]),
        ({"image": [IMAGE], "label": [-1]}, "LABELS", ["-1 in row 0"]),
        ({"image": [IMAGE], "label": [0.5]}, "LABELS", ["0.5 in row 0"]),
        ({"image": [IMAGE], "label": [0], "split": ["third"]}, "LABELS", ["'third' in row 0", "train, test"]),
        ({"image": [IMAGE], "label": [0], "split": [None]}, "LABELS", ["no value in row 0"]),
        ({"image": [IMAGE], "label": [0], "split": ["a"], "subset": ["b"]}, "COLUMN", ["split, subset"]),
        ({"left": [IMAGE], "right": [IMAGE], "label": [0]}, "COLUMN", ["left, right", "data.image_column"]),
    ],
)
def test_columns_that_do_not_fit_are_a_sentence(tmp_path, columns, code, words):
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    with raises(f"FEDAF-DATA-{code}") as error:
        load(tmp_path)
    assert all(word in str(error.value) for word in ["train.parquet", *words]), error.value


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_encoded_image_that_is_too_large_is_refused(tmp_path, wrapped):
    large = encoded(pixels(8, 8)) + bytes(64 << 20)
    content = [encoded(pixels(8, 8))] * 20 + [None, large]
    images = [{"bytes": image, "path": None} for image in content] if wrapped else content
    pq.write_table(pa.table({"image": images, "label": labels(22, 2)}), tmp_path / "a.parquet")
    with raises("FEDAF-DATA-DAMAGED") as error:
        load(tmp_path)
    words = ["the column image of", "a.parquet", f"{len(large):,} bytes in row 21", "at most 67,108,864"]
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("role", ["label", "client", "domain", "split"])
@pytest.mark.parametrize("by_dictionary", [False, True])
def test_a_text_that_is_too_long_is_refused(tmp_path, role, by_dictionary):
    columns = {"label": ["cat", "dog"] * 200, role: ["train"] * 300 + ["x" * 1000, "y" * 1001] + ["test"] * 98}
    arrays = {name: pa.array(texts) for name, texts in columns.items()}
    if by_dictionary:
        arrays[role] = arrays[role].dictionary_encode()
    pq.write_table(pa.table({"image": [encoded(pixels(8, 8))] * 400, **arrays}), tmp_path / "a.parquet")
    with raises("FEDAF-DATA-DAMAGED") as error:
        load(tmp_path)
    assert f"the column {role} of" in str(error.value)
    assert "1,001 bytes in row 301" in str(error.value)


def test_labels_may_be_a_dictionary_of_texts(tmp_path):
    names = pa.array(["cat", "dog", "cow"] * 200).dictionary_encode()
    for part in ("train", "test"):
        pq.write_table(pa.table({"image": [encoded(pixels(8, 8))] * 600, "label": names}), tmp_path / f"{part}.parquet")
    data = load(tmp_path)
    assert (data.classes, data.train.labels.tolist()) == (("cat", "cow", "dog"), [0, 2, 1] * 200)


def test_several_data_sets_in_one_folder_are_refused(tmp_path):
    for name in ("small", "large"):
        write(tmp_path / name / "train.parquet", pixels(15, 8, 8), label=labels(15))
    with raises("FEDAF-DATA-LAYOUT") as error:
        load(tmp_path)
    assert "large, small" in str(error.value)
    assert len(load(tmp_path / "small").train) == 12


@pytest.mark.parametrize(
    ("name", "code"), [("missing", "NOT-FOUND"), ("empty", "LAYOUT"), ("broken", "DAMAGED"), ("test", "LAYOUT")]
)
def test_paths_without_data_are_a_sentence(tmp_path, name, code):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.parquet").write_bytes(b"PAR1 nothing PAR1")
    write(tmp_path / "test" / "test.parquet", pixels(6, 8, 8), label=labels(6))
    with raises(f"FEDAF-DATA-{code}"):
        load(tmp_path / name)


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with raises("FEDAF-DATA-PYARROW") as error:
        load(tmp_path)
    assert "pip install pyarrow" in str(error.value)
