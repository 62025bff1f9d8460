"""CIFAR-10 and CIFAR-100 as published: batches as pickles ("python version") or as rows of bytes ("binary version")."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedaf.data.entries import DatasetSpec
from fedaf.data.readers import arrays_only
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import CHUNK, Writer
from fedaf.protocol import UserError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class _Version:
    """A folder with its files: pickles with ``labels`` and ``names_key``, or rows in which ``lead`` bytes come before
    the pixels, and the last of them is the label."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    labels: bytes = b""
    names_key: bytes = b""
    lead: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, *self.test)


_VERSIONS = {
    "cifar10": (
        _Version(
            "cifar-10-batches-py",
            tuple(f"data_batch_{n}" for n in range(1, 6)),
            ("test_batch",),
            "batches.meta",
            b"labels",
            b"label_names",
        ),
        _Version(
            "cifar-10-batches-bin",
            tuple(f"data_batch_{n}.bin" for n in range(1, 6)),
            ("test_batch.bin",),
            "batches.meta.txt",
            lead=1,
        ),
    ),
    "cifar100": (
        _Version("cifar-100-python", ("train",), ("test",), "meta", b"fine_labels", b"fine_label_names"),
        _Version("cifar-100-binary", ("train.bin",), ("test.bin",), "fine_label_names.txt", lead=2),
    ),
}


def places(name: str, data_dir: Path) -> list[Path]:
    return [folder / version.folder for version in _VERSIONS[name] for folder in (data_dir / name, data_dir)]


def find(name: str, data_dir: Path, entry: DatasetSpec) -> Source | None:
    for folder in places(name, data_dir):
        if not folder.is_dir():
            continue
        version = next(version for version in _VERSIONS[name] if version.folder == folder.name)
        missing = [file for file in version.files if not (folder / file).is_file()]
        if missing:
            raise UserError(f"{folder} holds only a part of {name}: {', '.join(missing)} is missing; fetch it again.")
        files = [folder / file for file in (*version.files, version.names)]
        return Source("cifar 1", folder, files, partial(_write, folder, version, entry.num_classes))
    return None


def _write(folder: Path, version: _Version, num_classes: int, writer: Writer) -> None:
    for part, files in (("train", version.train), ("test", version.test)):
        labels: list[np.ndarray] = []
        writer.images(f"x_{part}", (32, 32, 3), _upright(folder, version, files, labels))
        writer.array(f"y_{part}", np.concatenate(labels))
    if names := _names(folder / version.names, version, num_classes):
        writer.texts("classes", names)


def _upright(folder: Path, version: _Version, files: Sequence[str], labels: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Rows of 3072 as images with channels last, piece by piece; their labels are put into the list."""
    read = _rows if version.lead else _pickled
    step = CHUNK // _PIXELS
    for file in files:
        for pixels, numbers in read(folder / file, version):
            labels.append(numbers)
            for first in range(0, len(pixels), step):
                yield pixels[first : first + step].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _pickled(path: Path, version: _Version) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    batch = arrays_only.load(path)
    pixels, labels = batch.get(b"data"), batch.get(version.labels)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise UserError(f"data in {path} must be bytes in rows of {_PIXELS}; fetch it again.")
    if isinstance(labels, list) and all(type(label) is int and 0 <= label < 256 for label in labels):
        labels = np.array(labels, np.int64)
    if not isinstance(labels, np.ndarray) or labels.shape != pixels.shape[:1]:
        raise UserError(
            f"{version.labels.decode()} in {path} must be a label for each of the {len(pixels)} images; fetch it again."
        )
    yield pixels, labels.astype(np.int64)


def _rows(path: Path, version: _Version) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    row = version.lead + _PIXELS
    size = path.stat().st_size
    if size == 0 or size % row:
        raise UserError(f"{path} has {size:,} bytes, which are no rows of {row}; fetch it again.")
    with open(path, "rb") as file:
        while data := file.read(row * (CHUNK // row)):
            rows = np.frombuffer(data, np.uint8).reshape(-1, row)
            yield rows[:, version.lead :], rows[:, version.lead - 1].astype(np.int64)


def _names(path: Path, version: _Version, num_classes: int) -> list[str]:
    """The names of the classes, where the file with them is there."""
    if not path.is_file():
        return []
    if version.lead:
        names = path.read_text(errors="replace").split()
    else:
        given = arrays_only.load(path).get(version.names_key)
        known = given if isinstance(given, list) else []
        names = [name.decode(errors="replace") for name in known if isinstance(name, bytes)]
    if len(names) != num_classes:
        raise UserError(f"{path} names {len(names)} classes, but there are {num_classes}; fetch it again.")
    return names
