"""Image folders whose labels are in a CSV file."""

from pathlib import Path

import numpy as np
import pytest

from fedaf.data import catalog
from fedaf.data.spec import Columns
from support.datafiles import pixels, png, write_tree
from support.errors import raises


def load(folder: Path, **options):
    return catalog.load(f"folder:{folder}", Path("unused"), **options)


def write(
    folder: Path, text: str, *, name: str = "labels.csv", images: int = 20, ending: str = ".png"
) -> list[np.ndarray]:
    """Write a CSV file, and images in a folder below it; return the images."""
    arrays = [pixels(8, 8, seed=number) for number in range(images)]
    for number, array in enumerate(arrays):
        png(folder / "images" / f"scan_{number}{ending}", array)
    (folder / name).write_text(text)
    return arrays


def rows(*columns: str, file: str = "scan_{}", images: int = 20) -> str:
    """Rows of a CSV file; a column alternates between the words of its text."""
    words = [column.split() for column in columns]
    lines = [",".join([file.format(n), *(word[n % len(word)] for word in words)]) for n in range(images)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("file", ["scan_{}", "scan_{}.png", "images/scan_{}.png", "./images/scan_{}.png"])
@pytest.mark.parametrize("header", ["image_id,dx", "Image Index,Label", "id,diagnosis", "file_name,class"])
def test_files_and_labels_are_found_by_usual_names(tmp_path, file, header):
    arrays = write(tmp_path, f"{header}\n" + rows("nv mel", file=file))
    data = load(tmp_path)
    assert data.classes == ("mel", "nv")
    assert [len(data.train), len(data.test)] == [16, 4]
    labels = {array.tobytes(): 1 - number % 2 for number, array in enumerate(arrays)}
    for split in (data.train, data.test):
        assert [labels[image[0].numpy().tobytes()] for image in split.images] == split.labels.tolist()


def test_splits_clients_and_domains_are_columns(tmp_path, caplog):
    header = "image,label,split,client,domain\n"
    text = rows("2 10", "train train train train test test val", "rome oslo", "x y")
    write(tmp_path, header + text)
    data = load(tmp_path)
    assert data.classes == ("2", "10")
    assert (data.clients, data.domains) == (("oslo", "rome"), ("x", "y"))
    assert [len(data.train), len(data.test)] == [12, 6]
    assert data.train.clients.bincount().tolist() == [6, 6]
    assert "2 images of the split validation, which are not used" in caplog.text


def test_a_validation_split_replaces_a_missing_test_split(tmp_path, caplog):
    write(tmp_path, "image,label,split\n" + rows("a b", "train train train valid"))
    assert len(load(tmp_path).test) == 5
    assert "its split validation is the test set" in caplog.text


def test_columns_may_be_named(tmp_path):
    write(tmp_path, "key,grade,hospital,camera\n" + rows("a b", "p q r s", "x y"))
    data = load(tmp_path, columns=Columns("key", "grade", "hospital", "camera"))
    assert (data.classes, data.clients, data.domains) == (("a", "b"), tuple("pqrs"), ("x", "y"))
    assert load(tmp_path, columns=Columns("key", "camera")).classes == ("x", "y")


def test_the_only_csv_file_counts_if_images_are_not_in_class_folders(tmp_path):
    for number in range(10):
        png(tmp_path / f"{number}.png", pixels(8, 8))
    (tmp_path / "train.csv").write_text("id;label\n" + "".join(f"{n};{'ab'[n % 2]}\n" for n in range(10)))
    assert load(tmp_path).classes == ("a", "b")
    (tmp_path / "other.csv").write_text("id,label\n0,a\n")
    with raises("FEDAF-DATA-LAYOUT") as error:
        load(tmp_path)
    assert "other.csv, train.csv" in str(error.value)


def test_a_csv_file_beside_class_folders_is_not_used(tmp_path):
    write_tree(tmp_path, {"cat": 10, "dog": 10})
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    assert load(tmp_path).classes == ("cat", "dog")


def test_missing_and_unlisted_files_are_said(tmp_path, caplog):
    write(tmp_path, "image,label\n" + rows("a b", images=18) + "lost_1,a\n")
    with raises("FEDAF-DATA-UNREADABLE") as error:
        load(tmp_path)
    assert "lost_1: the file does not exist" in str(error.value)
    assert len(load(tmp_path, max_unreadable=0.1).unreadable) == 1
    assert "has 2 image files without a row in labels.csv; they are left out" in caplog.text


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("image,grade\nscan_0,a\n", "COLUMN", ["image, grade", "data.label_column"]),
        ("image,label,class\nscan_0,a,b\n", "COLUMN", ["label, class", "--set data.label_column=label"]),
        ("image,label,label\nscan_0,a,b\n", "COLUMN", ["two columns"]),
        ("image,label\nscan_0,a,b\n", "DAMAGED", ["line 2", "3 values for 2 columns"]),
        ("image,label\n", "DAMAGED", ["no rows"]),
        ("", "DAMAGED", ["header"]),
        ("image,label\nscan_0,\n", "LABELS", ["line 2", "no label"]),
        ("image,label,split\nscan_0,a,third\n", "LABELS", ["line 2", "'third'", "train, test"]),
        ("image,label\n../scan_0,a\n", "LAYOUT", ["line 2", "'../scan_0'"]),
        ("image,label\n/etc/passwd,a\n", "LAYOUT", ["line 2", "inside the folder"]),
        ("image,label\n" + rows("a"), "CLASSES", ["only class 'a'"]),
    ],
)
def test_mistakes_are_a_sentence(tmp_path, text, code, words):
    write(tmp_path, text)
    with raises(f"FEDAF-DATA-{code}") as error:
        load(tmp_path)
    assert all(word in str(error.value) for word in ["labels.csv" if code != "CLASSES" else "", *words]), error.value


@pytest.mark.parametrize("again", ["scan_3", "images/scan_3.png", "images//scan_3.png", "./images/./scan_3.png"])
def test_a_file_that_two_lines_name_is_refused(tmp_path, again):
    write(tmp_path, "image,label,split\n" + rows("a b", "train") + f"{again},a,test\n")
    with raises("FEDAF-DATA-LABELS") as error:
        load(tmp_path)
    assert "line 22" in str(error.value)
    assert "names the file of line 5, images/scan_3.png" in str(error.value)


def test_blank_lines_count_and_lines_inside_quotes_too(tmp_path):
    write(tmp_path, '\n\nimage;label\n\nscan_0;"a\nb"\n\nscan_1;\n')
    with raises("FEDAF-DATA-LABELS") as error:
        load(tmp_path)
    assert "line 8 of" in str(error.value)


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x0b", "\x1c"])
def test_only_newlines_end_a_line(tmp_path, separator):
    write(tmp_path, "image,label,note\n" + rows("a b", "x").replace(",x", f",x{separator}y"))
    assert load(tmp_path).classes == ("a", "b")


def test_a_name_of_two_files_is_refused(tmp_path):
    write(tmp_path, "image,label\n" + rows("a b"))
    png(tmp_path / "more" / "scan_3.png", pixels(8, 8))
    with raises("FEDAF-DATA-LAYOUT") as error:
        load(tmp_path)
    assert all(word in str(error.value) for word in ("line 5", "images/scan_3.png", "more/scan_3.png"))


def test_a_folder_of_tables_is_refused(tmp_path):
    (tmp_path / "patients.csv").write_text("age,label\n3,1\n")
    with raises("FEDAF-DATA-TABLE") as error:
        load(tmp_path)
    assert all(word in str(error.value) for word in ("patients.csv", "tables are not supported", "labels.csv"))


def test_columns_without_a_table_are_refused(tmp_path):
    write_tree(tmp_path, {"cat": 5, "dog": 5})
    for name in (f"folder:{tmp_path}", "digits"):
        with raises("FEDAF-DATA-COLUMN"):
            catalog.load(name, tmp_path, columns=Columns(client="writer"))


def test_a_changed_table_is_read_again(tmp_path):
    write(tmp_path, "image,label\n" + rows("a b"))
    assert load(tmp_path).classes == ("a", "b")
    (tmp_path / "labels.csv").write_text("image,label\n" + rows("a bee"))
    assert load(tmp_path).classes == ("a", "bee")
