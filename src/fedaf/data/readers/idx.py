"""The IDX files of MNIST and similar data sets, plain or gzipped."""

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedaf.data.problems import damaged, incomplete
from fedaf.data.spec import DatasetSpec, OfficialFile, Progress
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import CHUNK, Writer

_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
_MAX_EXPANSION = 1040  # gzip cannot compress by a larger factor
#: How the training labels begin. All such data sets use the same file names, so this tells them apart.
_FIRST_LABELS = {"mnist": bytes([5, 0, 4, 1, 9, 2, 1, 3, 1, 4]), "fashionmnist": bytes([9, 0, 0, 3, 0, 2, 7, 2, 5, 5])}


@dataclass(frozen=True)
class IdxReader:
    """Reads four IDX files. ``torchvision`` is the folder that torchvision keeps them in; ``installed`` are folders of
    system packages."""

    torchvision: str
    installed: tuple[Path, ...] = ()

    def places(self, spec: DatasetSpec, data_dir: Path) -> list[Path]:
        return [
            data_dir / spec.name,
            data_dir / spec.name / "raw",
            data_dir / self.torchvision / "raw",
            data_dir,
            data_dir / "raw",
            *self.installed,
        ]

    def find(self, spec: DatasetSpec, data_dir: Path, image_size: int | None, progress: Progress) -> Source | None:
        for folder in self.places(spec, data_dir):
            found = {key: path for key, name in _FILES.items() if (path := _file(folder, name))}
            missing = ", ".join(name for key, name in _FILES.items() if key not in found)
            if found and missing:
                raise incomplete(f"{folder} holds {spec.name} without {missing} (plain or .gz)")
            if found and not _is_another(found["y_train"], spec.name):
                return Source("idx 1", folder, list(found.values()), partial(_write, found, spec.shape[1:]))
        return None


def official_files(address: str, files: Mapping[str, tuple[int, str]]) -> tuple[OfficialFile, ...]:
    """Return the official files below an address, from sizes and checksums by name."""
    return tuple(OfficialFile(f"{address}/{name}-ubyte.gz", sha256, size) for name, (size, sha256) in files.items())


def _file(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{stem}{packed}" for stem in (name, name.replace("-idx", ".idx")) for packed in ("", ".gz"))
    return next(filter(Path.is_file, paths), None)


def _is_another(labels: Path, name: str) -> bool:
    """Return whether the training labels are those of another published data set."""
    with _open(labels) as file:
        begin = file.read(8 + 10)[8:]
    return begin in [first for other, first in _FIRST_LABELS.items() if other != name]


def _write(files: dict[str, Path], shape: tuple[int, int], writer: Writer) -> None:
    for part in ("train", "test"):
        images, labels = files[f"x_{part}"], files[f"y_{part}"]
        with _open(labels) as file:
            count = _header(file, labels, 1)[0]
            numbers = np.frombuffer(b"".join(_data(file, labels, count)), np.uint8)
        with _open(images) as file:
            found, *size = _header(file, images, 3)
            if tuple(size) != shape:
                raise damaged(f"{images} holds images of {size[0]}x{size[1]}; expected {shape[0]}x{shape[1]}")
            if found != count:
                raise damaged(f"{images} holds {found} images, but {labels} holds {count} labels")
            pieces = _data(file, images, found * shape[0] * shape[1], step=shape[0] * shape[1])
            writer.images(f"x_{part}", shape, (np.frombuffer(piece, np.uint8).reshape(-1, *shape) for piece in pieces))
        writer.array(f"y_{part}", numbers)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as file:
            yield file
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise damaged(f"{path} is not a complete gzip file ({error})") from error


def _header(file: BinaryIO, path: Path, dimensions: int) -> list[int]:
    """Read the sizes that an IDX file declares, and check that the file can hold that much data."""
    head = file.read(4 + 4 * dimensions)
    if head[:2] != b"\0\0":
        raise damaged(f"{path} is not an IDX file: it begins with {head[:2].hex() or 'nothing'} instead of 0000")
    if len(head) < 4 + 4 * dimensions:
        raise damaged(f"{path} ends within its header")
    if tuple(head[2:4]) != (8, dimensions):
        raise damaged(f"{path} has IDX type 0x{head[2]:02x} and {head[3]} dimensions; expected 0x08 and {dimensions}")
    sizes: list[int] = np.frombuffer(head[4:], ">u4").tolist()
    declared, actual, packed = len(head) + prod(sizes), os.path.getsize(path), path.suffix == ".gz"
    if packed and declared > actual * _MAX_EXPANSION:
        raise damaged(f"{path} declares {declared:,} bytes, more than {actual:,} gzipped bytes can hold")
    if not packed and declared != actual:
        raise damaged(f"{path} has {actual:,} bytes, but its header declares {declared:,}")
    return sizes


def _data(file: BinaryIO, path: Path, size: int, *, step: int = 1) -> Iterator[bytes]:
    """Read exactly ``size`` bytes in pieces of whole steps, and check that the file ends there."""
    step *= max(1, CHUNK // step)
    for first in range(0, size, step):
        wanted = min(step, size - first)
        piece = file.read(wanted)
        if len(piece) < wanted:
            raise damaged(f"{path} ends after {first + len(piece):,} of the {size:,} bytes it declares")
        yield piece
    if file.read(1):
        raise damaged(f"{path} has more than the {size:,} bytes it declares")
