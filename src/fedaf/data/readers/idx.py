"""The IDX files of MNIST and its likes, plain or gzipped."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedaf.data.entries import DatasetSpec
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import CHUNK, Writer
from fedaf.protocol import UserError

_FILES = {"x_train": "train-images", "y_train": "train-labels", "x_test": "t10k-images", "y_test": "t10k-labels"}
_TORCHVISION = {"mnist": "MNIST", "fashionmnist": "FashionMNIST"}
_INSTALLED = {"fashionmnist": [Path("/usr/share/datasets/fashion-mnist")]}  # Debian's dataset-fashion-mnist
_DENSEST = 1040  # no gzip file expands to more than this many times its size


def places(name: str, data_dir: Path) -> list[Path]:
    """The folders that may hold the four files. Both sets name them alike, so ``data_dir`` itself is one only where
    it is called like the set."""
    own = [data_dir, data_dir / "raw"] if data_dir.absolute().name.lower() == name else []
    return [
        data_dir / name,
        data_dir / name / "raw",
        data_dir / _TORCHVISION[name] / "raw",
        *own,
        *_INSTALLED.get(name, []),
    ]


def find(name: str, data_dir: Path, entry: DatasetSpec) -> Source | None:
    for folder in places(name, data_dir):
        files = {key: _file(folder, stem) for key, stem in _FILES.items()}
        found = {key: path for key, path in files.items() if path}
        if found and len(found) < len(files):
            missing = ", ".join(
                f"{stem}-idx{3 if key[0] == 'x' else 1}-ubyte" for key, stem in _FILES.items() if not files[key]
            )
            raise UserError(f"{folder} holds only a part of {name}: {missing} (plain or .gz) is missing.")
        if found:
            return Source("idx 1", folder, list(found.values()), partial(_write, found, entry.shape[1:]))
    return None


def _file(folder: Path, stem: str) -> Path | None:
    kind = "idx3" if stem.endswith("images") else "idx1"
    names = (f"{stem}{dot}{kind}-ubyte{packed}" for dot in "-." for packed in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _write(files: dict[str, Path], shape: tuple[int, int], writer: Writer) -> None:
    for part in ("train", "test"):
        images, labels = files[f"x_{part}"], files[f"y_{part}"]
        with _open(labels) as file:
            count = _header(file, labels, 1)[0]
            numbers = np.frombuffer(b"".join(_data(file, labels, count)), np.uint8)
        with _open(images) as file:
            found, *size = _header(file, images, 3)
            if tuple(size) != shape:
                raise UserError(f"{images} holds images of {size[0]}x{size[1]}, but {shape[0]}x{shape[1]} is expected.")
            if found != count:
                raise UserError(f"{images} holds {found} images, but {labels} {count} labels.")
            pieces = _data(file, images, found * shape[0] * shape[1], step=shape[0] * shape[1])
            writer.images(f"x_{part}", shape, (np.frombuffer(piece, np.uint8).reshape(-1, *shape) for piece in pieces))
        writer.array(f"y_{part}", numbers)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as file:
            yield file
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is not a whole gzip file ({error}); fetch it again.") from error


def _header(file: BinaryIO, path: Path, dimensions: int) -> list[int]:
    """The sizes an IDX file declares, checked against what the file can hold."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise UserError(
            f"{path} is not an IDX file: it must begin with two zero bytes, not {magic[:2].hex() or 'end'}."
        )
    if magic[2] != 8 or magic[3] != dimensions:
        raise UserError(
            f"{path} holds IDX type 0x{magic[2]:02x} in {magic[3]} dimensions; "
            f"it must be bytes (0x08) in {dimensions} dimension{'s' if dimensions > 1 else ''}."
        )
    raw = file.read(4 * dimensions)
    if len(raw) < 4 * dimensions:
        raise UserError(f"{path} ends within its header; fetch it again.")
    sizes = [int(size) for size in np.frombuffer(raw, ">u4")]
    declared, held = 4 + len(raw) + int(np.prod([1, *sizes], dtype=object)), os.path.getsize(path)
    if path.suffix == ".gz":
        if declared > held * _DENSEST:
            raise UserError(
                f"{path} declares {declared:,} bytes, more than {held:,} gzipped ones can hold; fetch it again."
            )
    elif declared != held:
        raise UserError(f"{path} has {held:,} bytes, but its header declares {declared:,}; fetch it again.")
    return sizes


def _data(file: BinaryIO, path: Path, size: int, *, step: int = 1) -> Iterator[bytes]:
    """Exactly ``size`` bytes in pieces of whole steps, and one more read to see that nothing follows."""
    step *= max(1, CHUNK // step)
    for first in range(0, size, step):
        wanted = min(step, size - first)
        piece = file.read(wanted)
        if len(piece) < wanted:
            raise UserError(
                f"{path} ends after {first + len(piece):,} of the {size:,} bytes it declares; fetch it again."
            )
        yield piece
    if file.read(1):
        raise UserError(f"{path} goes on after the {size:,} bytes it declares; fetch it again.")
