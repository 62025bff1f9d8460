"""CIFAR-10 and CIFAR-100 as published: batches as pickles ("python version") or as rows of bytes ("binary version")."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedaf.data.readers import arrays_only
from fedaf.data.spec import DatasetSpec, Progress
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import CHUNK, Writer
from fedaf.protocol import UserError

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class CifarVersion:
    """One published version: a folder with its files.

    The python version has ``labels_key`` and ``names_key`` in its pickles. In the binary version, ``label_bytes`` bytes
    precede the pixels of an image, and the last of them is the label.
    """

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    labels_key: bytes = b""
    names_key: bytes = b""
    label_bytes: int = 0

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.train, *self.test)


class CifarReader:
    """Reads the first version that it finds."""

    def __init__(self, *versions: CifarVersion) -> None:
        self._versions = {version.folder: version for version in versions}

    def places(self, spec: DatasetSpec, data_dir: Path) -> list[Path]:
        return [parent / folder for folder in self._versions for parent in (data_dir / spec.name, data_dir)]

    def find(self, spec: DatasetSpec, data_dir: Path, image_size: int | None, progress: Progress) -> Source | None:
        folder = next((folder for folder in self.places(spec, data_dir) if folder.is_dir()), None)
        if folder is None:
            return None
        version = self._versions[folder.name]
        if missing := [file for file in version.files if not (folder / file).is_file()]:
            raise UserError(
                f"{folder} holds {spec.name} without {', '.join(missing)}; fetch it again.",
                code="FEDAF-DATA-INCOMPLETE",
            )
        files = [folder / file for file in (*version.files, version.names)]
        return Source("cifar 1", folder, files, partial(_write, folder, version, spec.num_classes))


def _write(folder: Path, version: CifarVersion, num_classes: int, writer: Writer) -> None:
    for part, files in (("train", version.train), ("test", version.test)):
        labels: list[np.ndarray] = []
        writer.images(f"x_{part}", (32, 32, 3), _images(folder, version, files, labels))
        writer.array(f"y_{part}", np.concatenate(labels))
    if names := _names(folder / version.names, version, num_classes):
        writer.texts("classes", names)


def _images(
    folder: Path, version: CifarVersion, files: Sequence[str], labels: list[np.ndarray]
) -> Iterator[np.ndarray]:
    """Yield images with channels last, chunk by chunk, and append their labels to the list."""
    read = _rows if version.label_bytes else _pickled
    step = CHUNK // _PIXELS
    for file in files:
        for pixels, numbers in read(folder / file, version):
            labels.append(numbers)
            for first in range(0, len(pixels), step):
                yield pixels[first : first + step].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def _pickled(path: Path, version: CifarVersion) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    batch = arrays_only.load(path)
    pixels, labels = batch.get(b"data"), batch.get(version.labels_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise _damaged(f"data in {path} must be uint8 [N, {_PIXELS}]")
    if isinstance(labels, list) and all(type(label) is int and 0 <= label < 256 for label in labels):
        labels = np.array(labels, np.int64)
    if not isinstance(labels, np.ndarray) or labels.shape != pixels.shape[:1]:
        raise _damaged(f"{version.labels_key.decode()} in {path} must be a label for each of the {len(pixels)} images")
    yield pixels, labels.astype(np.int64)


def _rows(path: Path, version: CifarVersion) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    row = version.label_bytes + _PIXELS
    size = path.stat().st_size
    if size == 0 or size % row:
        raise _damaged(f"{path} has {size:,} bytes, which is not a multiple of {row}")
    with open(path, "rb") as file:
        while data := file.read(row * (CHUNK // row)):
            rows = np.frombuffer(data, np.uint8).reshape(-1, row)
            yield rows[:, version.label_bytes :], rows[:, version.label_bytes - 1].astype(np.int64)


def _names(path: Path, version: CifarVersion, num_classes: int) -> list[str]:
    """Return the class names, or nothing if their file is missing."""
    if not path.is_file():
        return []
    if version.label_bytes:
        names = path.read_text(errors="replace").split()
    else:
        given = arrays_only.load(path).get(version.names_key)
        known = given if isinstance(given, list) else []
        names = [name.decode(errors="replace") for name in known if isinstance(name, bytes)]
    if len(names) != num_classes:
        raise _damaged(f"{path} names {len(names)} classes; expected {num_classes}")
    return names


def _damaged(what: str) -> UserError:
    return UserError(f"{what}; fetch it again.", code="FEDAF-DATA-DAMAGED")
