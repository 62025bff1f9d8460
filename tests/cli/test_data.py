"""``fedaf data``: list, inspect and fetch."""

import hashlib
import io
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from fedaf.data.registry import DATASETS
from fedaf.reporting.downloads import LiveDownloads, PlainDownloads
from support.commandline import assert_one_sentence

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
PACKED = {"train": 1504176606, "t10k": 1504176627}  # when the official files were packed


def coloured(folder: Path) -> None:
    """A folder of two domains, with class c in grey value 40 c, 40 images each, and two broken ones."""
    for domain in ("photo", "sketch"):
        for c in range(3):
            place = folder / domain / f"kind [{c}] $"
            place.mkdir(parents=True)
            for number in range(40):
                Image.new("RGB", (9, 7), (40 * c, 40 * c, 40 * c + 1)).save(place / f"{number}.png")
    for number in range(2):
        (folder / "photo" / "kind [0] $" / f"broken-{number}.png").write_bytes(b"no image")


def test_the_list_says_what_is_here_and_how_to_get_the_rest(call, tmp_path):
    (tmp_path / "sets").mkdir()
    images, labels = np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, np.int64)
    np.savez(tmp_path / "sets" / "cifar10.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    code, out, _ = call("data", "list", "--data-dir", "sets")
    assert code == 0
    row = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "inside scikit-learn" in row["digits"]
    assert "sets/cifar10.npz" in row["cifar10"]
    assert "3 x 32 x 32" in row["cifar10"]
    assert "50000 + 10000" in row["cifar10"]
    assert "fedaf data fetch cifar100" in row["cifar100"]


def test_inspect_takes_the_columns_of_a_table(call, tmp_path):
    lines = ["key,grade,hospital"]
    (tmp_path / "scans").mkdir()
    for number in range(20):
        Image.new("L", (8, 8), number).save(tmp_path / "scans" / f"{number}.png")
        lines.append(f"{number},{'ab'[number % 2]},h{number % 5}")
    (tmp_path / "scans" / "labels.csv").write_text("\n".join(lines))
    columns = ("--image-column", "key", "--label-column", "grade", "--client-column", "hospital")
    code, out, err = call("data", "inspect", "folder:scans", *columns)
    assert code == 0, err
    assert "Natural clients: 5" in out
    code, _, err = call("data", "inspect", "folder:scans")
    assert_one_sentence(code, err, ["[FEDAF-DATA-COLUMN]", "key, grade, hospital", "data.image_column"])


def test_inspect_shows_counts_colours_and_a_contact_sheet(call, tmp_path):
    code, out, err = call("data", "inspect", "digits")
    assert code == 0, err
    assert "total   1438   359" in out
    assert "over 1438 training images: 0.3063; normalised with 0.3050." in out
    with Image.open(tmp_path / "digits-contact-sheet.png") as sheet:
        assert sheet.size[0] > 300
    assert call("data", "inspect", "digits")[0] == 0  # writes its own picture again


def test_inspect_names_classes_domains_and_unreadable_files(call, tmp_path):
    coloured(tmp_path / "mine")
    code, out, err = call("data", "inspect", "folder:mine", "--out", "sheet.png")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert ["kind", "[1]", "$", "64", "16"] in lines
    assert ["sketch", "96", "24"] in lines
    assert "decoding 242 images, once" in out
    assert "3 x 7 x 9" in out
    assert "Skipped 2 unreadable files: photo/kind [0] $/broken-0.png, photo/kind [0] $/broken-1.png." in out
    with Image.open(tmp_path / "sheet.png") as sheet:
        column = np.asarray(sheet.convert("L"))[:, sheet.size[0] // 2]
    assert list(column).index(0) < list(column).index(40)


def test_inspect_takes_the_size_of_images_and_the_share_of_unreadable_files(call, tmp_path):
    coloured(tmp_path / "mine")
    code, out, err = call("data", "inspect", "folder:mine", "--image-size", "6", "--out", "sheet.png")
    assert code == 0, err
    assert "3 x 6 x 6" in out
    code, _, err = call("data", "inspect", "folder:mine", "--max-unreadable", "0.001", "--out", "sheet.png")
    assert_one_sentence(code, err, ["[FEDAF-DATA-UNREADABLE]", "unreadable"])


def test_inspect_sums_up_many_classes(call, tmp_path):
    labels = np.concatenate([np.arange(30), [0, 0, 1]])
    images = np.zeros((33, 8, 8), np.uint8)
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    code, out, err = call("data", "inspect", "npz:mine.npz")
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert ["fewest", "of", "30", "1", "1"] in lines
    assert ["median", "1", "1"] in lines
    assert ["most", "3", "3"] in lines
    assert (tmp_path / "npz-mine-contact-sheet.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "digit"], ["[FEDAF-DATA-SET-UNKNOWN]", "'digit'", "'digits'"]),
        (["inspect", "digits", "--out", "sheet.doc"], ["[FEDAF-CLI-SHEET]", "sheet.doc", ".png"]),
        (["inspect", "digits", "--image-size", "0"], ["[FEDAF-CLI-USAGE]", "--image-size", "1"]),
        (["inspect", "digits", "--max-unreadable", "2"], ["[FEDAF-CLI-USAGE]", "--max-unreadable", "2"]),
        (["fetch", "minst"], ["[FEDAF-FETCH-UNKNOWN]", "'minst'", "'mnist'"]),
        (["fetch", "pacs"], ["[FEDAF-FETCH-BY-HAND]", "browser", "data/pacs"]),
        (["fetch", "mnist", "--mirror", "here"], ["[FEDAF-FETCH-MIRROR]", "'here'", "http://"]),
        (["fetch"], ["[FEDAF-CLI-USAGE]", "NAME"]),
    ],
)
def test_wrong_input_is_one_sentence(call, arguments, words):
    code, _, err = call("data", *arguments)
    assert_one_sentence(code, err, words)


def test_a_failed_download_is_one_sentence_and_code_1(call, server):
    code, _, err = call("data", "fetch", "cifar10", "--mirror", server.url)
    assert code == 1
    assert err.count("\n") == 1
    assert err.startswith(f"fedaf: {server.url}/cifar-10-python.tar.gz answered 404")
    assert err.endswith("[FEDAF-FETCH-STATUS]\n")


def test_digits_need_no_fetching(call):
    assert call("data", "fetch", "digits") == (0, "digits is inside scikit-learn; there is nothing to fetch.\n", "")


@pytest.mark.skipif(
    not DEBIAN.is_dir(), reason="FashionMNIST is not installed; get it with `apt install dataset-fashion-mnist`"
)
def test_fashionmnist_comes_from_a_mirror_with_its_official_checksums(call, server, tmp_path):
    for remote in DATASETS.find("fashionmnist").files:
        server.files[f"/{remote.name}"] = official(remote.name)
    code, out, err = call("data", "fetch", "fashionmnist", "--mirror", server.url)
    assert code == 0, err
    assert out.count("its checksum is right") == 4
    for remote in DATASETS.find("fashionmnist").files:
        content = (tmp_path / "data" / "fashionmnist" / remote.name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == remote.sha256
    code, out, _ = call("data", "fetch", "fashionmnist", "--mirror", server.url)
    assert code == 0
    assert out.count("is the official file") == 4
    assert len(server.requests) == 4


def official(name: str) -> bytes:
    """An official file from Debian's: the same stream, but Debian took name and time out of the gzip header."""
    stripped = (DEBIAN / name).read_bytes()
    inner = name.removesuffix(".gz").encode() + b"\0"
    time = struct.pack("<I", PACKED[name.partition("-")[0]])
    return b"\x1f\x8b\x08\x08" + time + stripped[8:10] + inner + stripped[10:]


def test_plain_lines_say_every_tenth_of_a_large_file():
    out = io.StringIO()
    downloads = PlainDownloads(Console(file=out))
    downloads.began("real.zip", 25 << 20, 100 << 20)
    for done in range(25, 101):
        downloads.advanced(done << 20)
    tenths = [f"real.zip: {tenth} %" for tenth in range(30, 101, 10)]
    assert out.getvalue().splitlines() == ["real.zip: 100.00 MiB, 25.00 MiB already downloaded", *tenths]


def test_a_terminal_gets_a_bar():
    out = io.StringIO()
    downloads = LiveDownloads(Console(file=out, force_terminal=True, width=100))
    downloads.began("real.zip", 0, 4 << 20)
    downloads.advanced(3 << 20)
    downloads.ended()
    downloads.said("done.")
    assert "real.zip" in out.getvalue()
    assert "3.0/4.0 MiB" in out.getvalue()
    assert out.getvalue().endswith("done.\n")
