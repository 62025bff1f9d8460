"""The stored form: memory-mapped, and converted once from every other format."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaf.data import catalog
from fedaf.data.storage import cache, form
from fedaf.protocol import UserError
from support.datafiles import pixels, write_idx, write_tree
from support.errors import raises


def arrays(*, train: int = 40, test: int = 10, shape: tuple[int, ...] = (8, 8, 3)) -> dict[str, np.ndarray]:
    return {
        "x_train": pixels(train, *shape),
        "y_train": np.arange(train) % 4,
        "x_test": pixels(test, *shape, seed=1),
        "y_test": np.arange(test) % 4,
    }


def load(path: Path, **options):
    return catalog.load(f"npz:{path}", Path("unused"), **options)


def cached() -> list[Path]:
    return sorted(cache.folder().glob("*"))


def test_images_are_a_view_of_the_file_itself(tmp_path):
    given = arrays()
    np.savez(tmp_path / "own.npz", **given)
    data = load(tmp_path / "own.npz")
    raw = bytearray((tmp_path / "own.npz").read_bytes())
    at = raw.index(given["x_train"][7].tobytes())
    raw[at] ^= 0xFF
    with open(tmp_path / "own.npz", "r+b") as file:
        file.write(raw)
    given["x_train"][7, 0, 0, 0] ^= 0xFF
    assert np.array_equal(data.train.images[7].numpy(), given["x_train"][7].transpose(2, 0, 1))
    assert data.train.images.shape == (40, 3, 8, 8)
    assert cached() == []


def test_writing_to_mapped_images_does_not_reach_the_file(tmp_path):
    np.savez(tmp_path / "own.npz", **arrays())
    before = (tmp_path / "own.npz").read_bytes()
    load(tmp_path / "own.npz").train.images[:] = 0
    assert (tmp_path / "own.npz").read_bytes() == before


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("shape", [(8, 8), (8, 6, 3)])
@pytest.mark.parametrize("by_column", [False, True])
def test_every_way_numpy_saves_gives_the_same_data(tmp_path, save, shape, by_column):
    given = arrays(shape=shape)
    order = np.asfortranarray if by_column else np.ascontiguousarray
    save(tmp_path / "own.npz", **{key: order(value) for key, value in given.items()}, extra=np.array([{}], object))
    data = load(tmp_path / "own.npz")
    assert data.num_classes == 4
    assert data.classes == ("0", "1", "2", "3")
    for split, part in ((data.train, "train"), (data.test, "test")):
        expected = given[f"x_{part}"].reshape(-1, shape[0], shape[1], 1 if len(shape) == 2 else 3)
        assert np.array_equal(split.images.numpy(), expected.transpose(0, 3, 1, 2))
        assert split.labels.tolist() == given[f"y_{part}"].tolist()
        assert split.labels.dtype == torch.int64
    assert len(cached()) == (1 if save is np.savez_compressed else 0)


def test_rows_larger_than_a_piece_are_converted_too(tmp_path, monkeypatch):
    monkeypatch.setattr(form, "CHUNK", 1000)
    given = arrays(shape=(20, 20, 3))
    np.savez_compressed(tmp_path / "own.npz", **given)
    assert np.array_equal(load(tmp_path / "own.npz").train.images.permute(0, 2, 3, 1).numpy(), given["x_train"])


def test_names_and_domains_are_read(tmp_path):
    more = {"domain_train": np.arange(40) % 2, "domain_test": np.arange(10) % 2}
    names = {"classes": np.array(["a", "b", "c", "d"]), "domains": np.array(["north", "south"])}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "own.npz", **arrays(), **more, **names)
        data = load(tmp_path / "own.npz")
        assert data.classes == ("a", "b", "c", "d")
        assert data.domains == ("north", "south")
        assert data.test.domains.tolist() == [0, 1] * 5


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_of_medmnist_is_read(tmp_path, save, caplog):
    given = {
        "train_images": pixels(12, 28, 28),
        "train_labels": (np.arange(12) % 3).astype(np.uint8)[:, None],
        "val_images": pixels(6, 28, 28),
        "val_labels": np.zeros((6, 1), np.uint8),
        "test_images": pixels(6, 28, 28, seed=1),
        "test_labels": (np.arange(6) % 3).astype(np.uint8)[:, None],
    }
    save(tmp_path / "pathmnist.npz", **given)
    data = load(tmp_path / "pathmnist.npz")
    assert np.array_equal(data.train.images.numpy(), given["train_images"][:, None])
    assert np.array_equal(data.test.images.numpy(), given["test_images"][:, None])
    assert data.train.labels.tolist() == [0, 1, 2] * 4
    assert caplog.messages == [f"{tmp_path / 'pathmnist.npz'} also has val_images, val_labels, which are not used"]


def test_several_labels_for_an_image_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", **{**arrays(), "y_train": np.zeros((40, 14), np.uint8)})
    with raises("FEDAF-DATA-LABELS") as error:
        load(tmp_path / "own.npz")
    assert all(word in str(error.value) for word in ("y_train", "uint8 [40, 14]", "multi-label"))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_names_may_be_labels_domains_and_clients(tmp_path, save):
    cities, writers = np.array(["Oslo", "Lima"] * 20), np.array([70, 5, 5, 70] * 10)
    given = {**arrays(), "y_train": np.array(list("badc") * 10), "y_test": np.array(list("ab") * 5)}
    save(tmp_path / "own.npz", **given, domain_train=cities, domain_test=cities[:10], client_train=writers)
    data = load(tmp_path / "own.npz")
    assert data.classes == ("a", "b", "c", "d")
    assert data.train.labels[:4].tolist() == [1, 0, 3, 2]
    assert (data.domains, data.train.domains[:2].tolist()) == (("Lima", "Oslo"), [1, 0])
    assert (data.clients, data.train.clients[:4].tolist()) == (("5", "70"), [1, 0, 0, 1])
    assert data.test.clients is None


def test_labels_that_need_a_pickle_are_refused(tmp_path):
    np.savez(tmp_path / "own.npz", **{**arrays(), "y_train": np.array(list("abcd") * 10, object)})
    with raises("FEDAF-DATA-DAMAGED") as error:
        load(tmp_path / "own.npz")
    assert all(word in str(error.value) for word in ("y_train", "astype(str)"))


def test_a_table_of_numbers_is_refused(tmp_path):
    np.savez(tmp_path / "own.npz", **{**arrays(), "x_train": np.zeros((40, 7))})
    with raises("FEDAF-DATA-TABLE") as error:
        load(tmp_path / "own.npz")
    assert all(word in str(error.value) for word in ("x_train", "float64 [40, 7]", "not supported"))


def test_arrays_without_known_names_are_listed(tmp_path):
    np.savez(tmp_path / "own.npz", images=pixels(4, 8, 8), labels=np.arange(4))
    with raises("FEDAF-DATA-DAMAGED") as error:
        load(tmp_path / "own.npz")
    assert all(word in str(error.value) for word in ("only images, labels", "x_train", "train_images"))


def by_domain(**changes) -> dict[str, np.ndarray]:
    given = {}
    for seed, (domain, count) in enumerate({"sea": 12, "air": 9}.items()):
        for part in ("train", "test"):
            given[f"{domain}_x_{part}"] = pixels(count, 8, 8, 3, seed=seed)
            given[f"{domain}_y_{part}"] = np.arange(count, dtype=np.uint8) % 3
    return {**given, "classes": np.array(["x", "y", "z"]), "domains": np.array(["sea", "air"]), **changes}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_by_domain_are_joined_in_the_order_given(tmp_path, save):
    given = by_domain()
    save(tmp_path / "own.npz", **given)
    data = load(tmp_path / "own.npz")
    assert data.domains == ("sea", "air")
    assert data.train.domains.tolist() == [0] * 12 + [1] * 9
    assert data.train.labels.tolist() == [*given["sea_y_train"], *given["air_y_train"]]
    expected = np.concatenate([given["sea_x_train"], given["air_x_train"]])
    assert np.array_equal(data.train.images.permute(0, 2, 3, 1).numpy(), expected)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"domains": np.array(["sea", "land"])}, ["INCOMPLETE", "land_x_train"]),
        ({"air_x_test": pixels(9, 9, 9, 3)}, ["SHAPE", "air_x_test", "(9, 9, 3)"]),
        ({"air_y_test": np.arange(8)}, ["LABELS", "air_y_test", "9 images"]),
        ({"air_y_test": np.full(9, 3)}, ["LABELS", "y_test", "label 3"]),
        ({"air_x_train": np.zeros((9, 8, 8, 3))}, ["SHAPE", "air_x_train", "float64"]),
        ({"classes": np.array(["x", "x", "z"])}, ["CLASSES", "classes"]),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, dict) else "",
)
def test_arrays_by_domain_that_do_not_fit_are_a_sentence(tmp_path, changes, words):
    np.savez(tmp_path / "own.npz", **by_domain(**changes))
    with raises(f"FEDAF-DATA-{words[0]}") as error:
        load(tmp_path / "own.npz")
    assert all(word in str(error.value) for word in ["own.npz", *words[1:]]), error.value


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"domain_train": np.zeros(40, int)}, ["INCOMPLETE", "domain_train", "without domain_test"]),
        ({"domain_train": np.full(40, 2), "domain_test": np.full(10, 3)}, ["LABELS", "domain_test", "domain 3"]),
        ({"domain_test": np.zeros(10, int)}, ["INCOMPLETE", "domain_test", "without domain_train"]),
        ({"domains": np.array(["north", "south"])}, ["INCOMPLETE", "domains", "domain_train", "domain_test"]),
        ({"clients": np.array(["ann", "bob"])}, ["INCOMPLETE", "clients", "client_train"]),
        ({"x_train": np.zeros((40, 8, 8, 3))}, ["SHAPE", "x_train", "float64 [40, 8, 8, 3]", "astype(np.uint8)"]),
        ({"classes": np.array(["a", "b"])}, ["LABELS", "y_train", "label 2 in row 2", "0 to 1"]),
        ({"classes": np.arange(4)}, ["CLASSES", "classes"]),
        ({"x_train": pixels(40, 3, 8, 8)}, ["SHAPE", "x_train", "[N, C, H, W]"]),
        ({"y_train": np.full(40, 2**64 - 1, np.uint64)}, ["LABELS", "y_train"]),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, dict) else "",
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_that_do_not_fit_are_a_sentence(tmp_path, changes, words, save):
    save(tmp_path / "own.npz", **{**arrays(), **changes})
    for _ in range(2):  # the second time from the converted copy
        with raises(f"FEDAF-DATA-{words[0]}") as error:
            load(tmp_path / "own.npz")
        assert all(word in str(error.value) for word in ["own.npz", *words[1:]]), error.value


def test_grey_images_are_not_cifar(tmp_path):
    np.savez(tmp_path / "cifar10.npz", **arrays(shape=(32, 32)))
    with raises("FEDAF-DATA-SHAPE") as error:
        catalog.load("cifar10", tmp_path)
    assert all(word in str(error.value) for word in ("cifar10.npz", "(1, 32, 32)", "(3, 32, 32)"))


def test_arrays_are_not_resized(tmp_path):
    np.savez(tmp_path / "own.npz", **arrays())
    assert load(tmp_path / "own.npz", image_size=8).train.images.shape[2:] == (8, 8)
    with raises("FEDAF-DATA-IMAGE-SIZE") as error:
        load(tmp_path / "own.npz", image_size=16)
    assert all(word in str(error.value) for word in ("16", "own.npz", "8x8"))
    with raises("FEDAF-DATA-IMAGE-SIZE") as error:
        catalog.load("digits", tmp_path, image_size=16)
    assert all(word in str(error.value) for word in ("16", "digits", "8x8"))


def test_a_file_that_would_expand_absurdly_is_refused_before(tmp_path):
    """Two gigabytes of zeros in two megabytes, by the sizes that the file declares."""
    np.savez_compressed(tmp_path / "own.npz", **arrays())
    with zipfile.ZipFile(tmp_path / "own.npz") as file:
        sizes = {info.filename: (info.header_offset, info.compress_size) for info in file.infolist()}
    raw = bytearray((tmp_path / "own.npz").read_bytes())
    at = raw.index(b"x_train.npy", raw.index(b"PK\x01\x02")) - 46 + 24
    raw[at : at + 4] = (2 << 30).to_bytes(4, "little")
    (tmp_path / "own.npz").write_bytes(raw)
    started = time.perf_counter()
    with raises("FEDAF-DATA-TOO-LARGE") as error:
        load(tmp_path / "own.npz")
    assert f"from {sizes['x_train.npy'][1]:,} to 2,147,483,648 bytes" in str(error.value)
    assert time.perf_counter() - started < 1
    assert cached() == []


def damage(path: Path, how: str) -> None:
    raw = bytearray(path.read_bytes())
    if how == "half":
        raw = raw[: len(raw) // 2]
    elif how == "empty":
        raw = bytearray()
    elif how == "a flipped bit":
        raw[5000] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("how", ["half", "empty", "a flipped bit"])
def test_a_damaged_copy_is_made_again(tmp_path, how, caplog):
    given = write_idx(tmp_path / "mnist")
    catalog.load("mnist", tmp_path)
    (copy,) = cached()
    damage(copy, how)
    data = catalog.load("mnist", tmp_path)
    assert np.array_equal(data.train.images.numpy(), given["x_train"][:, None])
    assert "damaged" in caplog.text
    assert cached() == [copy]


@pytest.mark.parametrize("how", ["half", "empty", "a flipped bit"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_of_the_users_is_named(tmp_path, how, save):
    save(tmp_path / "own.npz", **arrays())
    damage(tmp_path / "own.npz", how)
    with raises("FEDAF-DATA-DAMAGED") as error:
        load(tmp_path / "own.npz")
    assert "own.npz" in str(error.value)
    assert cached() == []


def test_a_copy_is_opened_and_not_made_again(tmp_path):
    write_idx(tmp_path / "mnist")
    catalog.load("mnist", tmp_path)
    (copy,) = cached()
    inode = copy.stat().st_ino
    catalog.load("mnist", tmp_path)
    assert copy.stat().st_ino == inode


def test_a_changed_source_is_converted_again_and_its_old_copy_removed(tmp_path):
    write_idx(tmp_path / "mnist")
    write_idx(tmp_path / "fashionmnist")
    catalog.load("fashionmnist", tmp_path)
    other = set(cached())
    catalog.load("mnist", tmp_path)
    first = set(cached()) - other
    given = write_idx(tmp_path / "mnist", train=50)
    assert len(catalog.load("mnist", tmp_path).train) == len(given["x_train"]) == 50
    second = set(cached()) - other
    assert other <= set(cached())
    assert len(second) == 1
    assert not first & second


def test_what_a_killed_process_left_is_removed_in_time(tmp_path):
    write_idx(tmp_path / "mnist")
    catalog.load("mnist", tmp_path)
    (copy,) = cached()
    stem = copy.name.rsplit("-", 1)[0]
    old, recent = copy.with_name(f"{stem}-x.part"), copy.with_name(f"{stem}-y.part")
    for part in (old, recent):
        part.touch()
    os.utime(old, (0, 0))
    write_idx(tmp_path / "mnist", train=50)
    catalog.load("mnist", tmp_path)
    assert recent in cached()
    assert old not in cached()


def test_a_failed_conversion_leaves_nothing(tmp_path):
    write_idx(tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with raises("FEDAF-DATA-DAMAGED"):
        catalog.load("mnist", tmp_path)
    assert cached() == []


def test_a_cache_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDAF_CACHE", str(tmp_path / "file" / "cache"))
    write_idx(tmp_path / "mnist")
    with raises("FEDAF-DATA-CACHE") as error:
        catalog.load("mnist", tmp_path)
    assert all(word in str(error.value) for word in ("file/cache", "FEDAF_CACHE"))


def test_the_cache_folder_follows_the_environment(monkeypatch):
    monkeypatch.setenv("FEDAF_CACHE", "/a")
    assert cache.folder() == Path("/a")
    monkeypatch.delenv("FEDAF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache.folder() == Path("/b/fedaf")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache.folder() == Path("/c/.cache/fedaf")


def test_two_processes_may_convert_at_once(tmp_path):
    write_tree(tmp_path / "own", {"cat": 100, "dog": 100}, shape=(12, 12, 3))
    code = (
        "from pathlib import Path; from fedaf.data import catalog;"
        f"print(catalog.load('folder:{tmp_path / 'own'}', Path()).train.images.sum().item())"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    sums = {process.communicate(timeout=120)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(sums) == 1
    assert [path.suffix for path in cached()] == [".npz"]


def test_a_kill_leaves_no_half_copy(tmp_path):
    write_tree(tmp_path / "own", {"cat": 100, "dog": 100})
    code = (
        "import os, sys; from pathlib import Path; from fedaf.data import catalog;"
        f"catalog.load('folder:{tmp_path / 'own'}', Path(), progress=lambda done, total: os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert [path.suffix for path in cached()] == [".part"]
    assert len(catalog.load(f"folder:{tmp_path / 'own'}", tmp_path).train) == 160


WHOLE = arrays(train=4, test=4, shape=(2, 2))


@settings(deadline=None)
@given(st.integers(0, 1500), st.integers(0, 255), st.booleans())
def test_one_changed_byte_gives_the_data_or_a_sentence(tmp_path_factory, at, byte, compressed):
    path = tmp_path_factory.getbasetemp() / "changed.npz"
    (np.savez_compressed if compressed else np.savez)(path, **WHOLE)
    raw = bytearray(path.read_bytes())
    raw[at % len(raw)] = byte
    path.write_bytes(raw)
    try:
        data = load(path)
    except UserError:
        return
    assert data.train.labels.tolist() == [0, 1, 2, 3]
    assert np.array_equal(data.train.images[:, 0].numpy(), WHOLE["x_train"])


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_sentence(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "random.npz"
    path.write_bytes(data)
    with raises("FEDAF-DATA-DAMAGED"):
        load(path)
