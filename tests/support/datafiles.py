"""Small data sets in their published file formats."""

import gzip
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedaf.data.registry import DATASETS
from fedaf.data.spec import DatasetSpec, OfficialFile

CIFAR10_FILES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


def register(patch: pytest.MonkeyPatch, spec: DatasetSpec) -> None:
    """Add a data set to the registry for the rest of the test."""
    patch.setattr(f"{__name__}.{spec.name}", spec, raising=False)
    patch.setitem(DATASETS.builtin, spec.name, f"{__name__}:{spec.name}")


def offer_files(patch: pytest.MonkeyPatch, name: str, *files: OfficialFile) -> None:
    """Register a data set of these official files."""
    register(patch, DatasetSpec((1, 8, 8), 2, (0.5,), (0.25,), name=name, files=files))


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(folder: Path, *, train: int = 30, test: int = 10, dot: str = "-", packed: bool = True) -> dict:
    """Write the four files of MNIST; return the arrays in them."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, stem, count in (("train", "train", train), ("test", "t10k", test)):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = pixels(count, 28, 28, seed=count), np.arange(count) % 10
        for kind, key in (("images", "x"), ("labels", "y")):
            data = idx(arrays[f"{key}_{part}"].astype(np.uint8))
            name = f"{stem}-{kind}{dot}idx{3 if key == 'x' else 1}-ubyte"
            (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(data) if packed else data)
    return arrays


def python2_pickle(value: object) -> bytes:
    """Pickle as Python 2's cPickle does with protocol 2, except for the order of memo entries."""
    memo = 0

    def put() -> bytes:
        nonlocal memo
        memo += 1
        return b"q" + bytes([memo]) if memo < 256 else b"r" + struct.pack("<I", memo)

    def dump(value: object) -> bytes:
        match value:
            case None:
                return b"N"
            case bool():
                return b"\x88" if value else b"\x89"
            case int():
                if 0 <= value < 256:
                    return b"K" + bytes([value])
                return b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)
            case bytes():
                short = len(value) < 256
                return (b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value))) + value + put()
            case list():
                return b"]" + put() + b"(" + b"".join(map(dump, value)) + b"e"
            case tuple():
                return b"(" + b"".join(map(dump, value)) + b"t" + put()
            case dict():
                return b"}" + put() + b"(" + b"".join(dump(k) + dump(v) for k, v in value.items()) + b"u"
            case np.ndarray():
                by_column = value.flags.f_contiguous and not value.flags.c_contiguous
                made = b"cnumpy.core.multiarray\n_reconstruct\n" + put() + b"cnumpy\nndarray\n" + put()
                made += dump((0,)) + dump(b"b") + b"\x87" + put() + b"R" + put()
                kind = b"cnumpy\ndtype\n" + put() + dump((b"u1", 0, 1)) + b"R" + put()
                kind += dump((3, b"|", None, None, None, -1, -1, 0)) + b"b"
                data = value.tobytes(order="F" if by_column else "C")
                shape = dump(value.shape)
                return made + b"(" + dump(1) + shape + kind + dump(by_column) + dump(data) + b"t" + put() + b"b"
        raise TypeError(type(value))

    return b"\x80\x02" + dump(value) + b"."


def cifar_batch(rows: int, key: bytes, classes: int, *, seed: int) -> dict[bytes, object]:
    return {
        b"batch_label": b"training batch 1 of 5",
        key: [(seed + n) % classes for n in range(rows)],
        b"data": pixels(rows, 3072, seed=seed),
        b"filenames": [b"%d.png" % n for n in range(rows)],
    }


def png(path: Path, array: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)
    return path


def write_tree(root: Path, counts: Mapping[str, int], *, shape: tuple[int, ...] = (8, 8, 3)) -> None:
    """Write images of noise: a number for each folder."""
    for seed, (folder, count) in enumerate(counts.items()):
        for number in range(count):
            png(root / folder / f"{number:03d}.png", pixels(*shape, seed=1000 * seed + number))
