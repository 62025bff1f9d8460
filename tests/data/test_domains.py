"""PACS and DomainNet as published: a tree of images, with lists."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedaf.data import catalog
from fedaf.data.registry import DATASETS
from support.datafiles import pixels, png
from support.errors import raises

PACS, DOMAINNET = DATASETS.find("pacs"), DATASETS.find("domainnet")


def write_pacs(root: Path, *, each: int = 5) -> None:
    for seed, domain in enumerate(PACS.domains):
        for number, label in enumerate(PACS.classes):
            for image in range(each):
                array = pixels(9, 7, 3, seed=(seed * 7 + number) * each + image)
                png(root / domain / label / f"pic_{image:03d}.png", array)


def write_pacs_lists(folder: Path, *, each: int = 5, test: int = 2) -> None:
    folder.mkdir(exist_ok=True)
    for domain in PACS.domains:
        lines = [
            [f"{domain}/{label}/pic_{image:03d}.png {number}" for image in range(each)]
            for number, label in enumerate(PACS.classes, 1)
        ]
        for part, kept in (("train", slice(test, None)), ("crossval", slice(test)), ("test", slice(None))):
            text = "\n".join(line for group in lines for line in group[kept]) + "\n"
            (folder / f"{domain}_{part}_kfold.txt").write_text(text)


@pytest.mark.parametrize("place", ["pacs/kfold", "pacs", "PACS/kfold", "PACS", "kfold", "."])
def test_pacs_without_lists_is_split_by_domain_and_class(tmp_path, place):
    write_pacs(tmp_path / place)
    data = catalog.load("pacs", tmp_path)
    assert data.classes == PACS.classes
    assert data.domains == PACS.domains
    assert tuple(data.train.images.shape) == (4 * 7 * 4, 3, 64, 64)
    assert data.test.labels.bincount().tolist() == [4] * 7
    assert data.test.domains.bincount().tolist() == [7] * 4


@pytest.mark.parametrize("lists", ["kfold", ".", "splits", "Train val splits and h5py files pre-read"])
def test_the_crossval_lists_of_pacs_are_its_test_split(tmp_path, lists):
    write_pacs(tmp_path / "PACS" / "kfold")
    write_pacs_lists(tmp_path / "PACS" / lists)
    data = catalog.load("pacs", tmp_path, image_size=9)
    assert data.train.labels.bincount().tolist() == [12] * 7
    assert data.test.domains.bincount().tolist() == [14] * 4
    first = Image.open(tmp_path / "PACS" / "kfold" / "art_painting" / "dog" / "pic_000.png")
    resized = np.asarray(first.resize((9, 9), Image.Resampling.BILINEAR))
    assert np.array_equal(data.test.images[0].permute(1, 2, 0), resized)


def test_grey_pacs_is_still_rgb(tmp_path):
    for domain in PACS.domains:
        for label in PACS.classes:
            for image in range(3):
                png(tmp_path / domain / label / f"{image}.png", pixels(8, 8))
    assert catalog.load("pacs", tmp_path).train.images.shape[1] == 3


def test_a_listed_file_that_is_not_there_is_unreadable(tmp_path):
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    (tmp_path / "photo" / "house" / "pic_004.png").unlink()
    data = catalog.load("pacs", tmp_path)
    assert data.unreadable == ("photo/house/pic_004.png",)


def test_pacs_that_is_not_whole_is_a_sentence(tmp_path):
    write_pacs(tmp_path / "pacs")
    (tmp_path / "pacs" / "photo").rename(tmp_path / "elsewhere")
    with raises("FEDAF-DATA-INCOMPLETE") as error:
        catalog.load("pacs", tmp_path)
    assert "photo" in str(error.value)
    (tmp_path / "elsewhere").rename(tmp_path / "pacs" / "photo")
    (tmp_path / "pacs" / "photo" / "dog").rename(tmp_path / "dog")
    with raises("FEDAF-DATA-INCOMPLETE") as error:
        catalog.load("pacs", tmp_path)
    assert "photo/dog" in str(error.value)
    write_pacs_lists(tmp_path / "pacs")
    (tmp_path / "pacs" / "photo_crossval_kfold.txt").unlink()
    with raises("FEDAF-DATA-INCOMPLETE") as error:
        catalog.load("pacs", tmp_path)
    assert "photo_crossval_kfold.txt" in str(error.value)
    assert "photo_train_kfold.txt" not in str(error.value)


@pytest.mark.parametrize(
    "line", ["photo/dog/pic_000.png", "photo/cow/a.png 1", "sketch/dog/a.png 1", "photo/dog/../a.png 1", "../../a 1"]
)
def test_an_invalid_line_is_named(tmp_path, line):
    write_pacs(tmp_path)
    write_pacs_lists(tmp_path)
    with open(tmp_path / "photo_train_kfold.txt", "a") as file:
        file.write(line)
    with raises("FEDAF-DATA-LIST") as error:
        catalog.load("pacs", tmp_path)
    assert f"line 22 of {tmp_path / 'photo_train_kfold.txt'}" in str(error.value)


def write_domainnet(root: Path, lists: Path) -> None:
    """Two classes of FedBN's ten, and one that it leaves out, in all domains."""
    lists.mkdir(parents=True, exist_ok=True)
    for seed, domain in enumerate(DOMAINNET.domains):
        rows: dict[str, list[str]] = {"train": [], "test": []}
        for number, label in ((0, "aircraft_carrier"), (24, "bird"), (344, "zebra")):
            for image, part in enumerate(["train"] * 3 + ["test"] * 2):
                name = f"{domain}/{label}/{domain}_{number:03d}_{image:06d}.png"
                png(root / name, pixels(20, 30, 3, seed=seed * 1000 + number))
                rows[part].append(f"{name} {number}")
        for part, lines in rows.items():
            (lists / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("place", ["domainnet", "DomainNet", "."])
@pytest.mark.parametrize("below", ["", "splits"])
def test_domainnet_has_the_ten_classes_of_fedbn(tmp_path, place, below):
    write_domainnet(tmp_path / place, tmp_path / place / below)
    data = catalog.load("domainnet", tmp_path)
    assert data.num_classes == 10
    assert data.train.labels.unique().tolist() == [0, 9]
    assert data.classes[9] == "zebra"
    assert data.train.domains.bincount().tolist() == [6] * 6
    assert data.test.domains.bincount().tolist() == [4] * 6
    assert tuple(data.train.images.shape[1:]) == (3, 64, 64)


def test_domainnet_without_lists_or_domains_says_which(tmp_path):
    root = tmp_path / "domainnet"
    write_domainnet(root, root)
    (root / "real_test.txt").unlink()
    with raises("FEDAF-DATA-INCOMPLETE") as error:
        catalog.load("domainnet", tmp_path)
    assert "real_test.txt" in str(error.value)
    assert "real_train.txt" not in str(error.value)
    (root / "infograph").rename(tmp_path / "infograph-elsewhere")
    with raises("FEDAF-DATA-INCOMPLETE") as error:
        catalog.load("domainnet", tmp_path)
    assert "infograph" in str(error.value)


MISSING = {
    "mnist": ["mnist.npz", "mnist/raw", "MNIST/raw"],
    "cifar10": ["cifar10.npz", "cifar-10-batches-py", "cifar10/cifar-10-batches-bin"],
    "cifar100": ["cifar100.npz", "cifar-100-python", "cifar100/cifar-100-binary"],
    "domainnet": ["domainnet.npz", "DomainNet"],
    "pacs": ["pacs.npz", "pacs64.npz", "PACS/kfold"],
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_set_says_where_it_was_looked_for_and_how_to_get_it(tmp_path, name):
    with raises("FEDAF-DATA-NOT-FOUND") as error:
        catalog.load(name, tmp_path)
    text = str(error.value)
    assert all(str(tmp_path / place) in text for place in MISSING[name]), text
    assert f"`fedaf data fetch {name} --data-dir {tmp_path}`" in text
    assert catalog.locate(name, tmp_path) is None


def test_a_set_is_located_without_converting_it(tmp_path):
    write_domainnet(tmp_path / "domainnet", tmp_path / "domainnet")
    assert catalog.locate("domainnet", tmp_path) == tmp_path / "domainnet"
    (tmp_path / "domainnet" / "real_test.txt").unlink()
    assert catalog.locate("domainnet", tmp_path) is None
    assert catalog.locate("digits", tmp_path) is None
