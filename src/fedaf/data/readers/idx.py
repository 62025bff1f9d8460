"""The IDX files of MNIST and similar data sets, plain or gzipped."""

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from fedaf.data.spec import DatasetSpec, OfficialFile, Progress
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import CHUNK, Writer
from fedaf.protocol import UserError

_FILES = {"x_train": "train-images", "y_train": "train-labels", "x_test": "t10k-images", "y_test": "t10k-labels"}
_MAX_EXPANSION = 1040  # gzip cannot compress by a larger factor


@dataclass(frozen=True)
class IdxReader:
    """Reads four IDX files. ``torchvision`` is the folder that torchvision keeps them in; ``installed`` are folders of
    system packages."""

    torchvision: str
    installed: tuple[Path, ...] = ()

    def places(self, spec: DatasetSpec, data_dir: Path) -> list[Path]:
        # All such data sets use the same file names, so data_dir itself counts only if it is named after this one.
        is_its_own = data_dir.absolute().name.lower() == spec.name
        return [
            data_dir / spec.name,
            data_dir / spec.name / "raw",
            data_dir / self.torchvision / "raw",
            *([data_dir, data_dir / "raw"] if is_its_own else []),
            *self.installed,
        ]

    def find(self, spec: DatasetSpec, data_dir: Path, image_size: int | None, progress: Progress) -> Source | None:
        for folder in self.places(spec, data_dir):
            files = {key: _file(folder, stem) for key, stem in _FILES.items()}
            found = {key: path for key, path in files.items() if path}
            if found and len(found) < len(files):
                missing = ", ".join(
                    f"{stem}-idx{3 if key[0] == 'x' else 1}-ubyte" for key, stem in _FILES.items() if not files[key]
                )
                raise UserError(
                    f"{folder} holds {spec.name} without {missing} (plain or .gz); fetch it again.",
                    code="FEDAF-DATA-INCOMPLETE",
                )
            if found:
                return Source("idx 1", folder, list(found.values()), partial(_write, found, spec.shape[1:]))
        return None


def official_files(address: str, files: Mapping[str, tuple[int, str]]) -> tuple[OfficialFile, ...]:
    """Return the official files below an address, from sizes and checksums by name."""
    return tuple(OfficialFile(f"{address}/{name}-ubyte.gz", sha256, size) for name, (size, sha256) in files.items())


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
                raise _damaged(f"{images} holds images of {size[0]}x{size[1]}; expected {shape[0]}x{shape[1]}")
            if found != count:
                raise _damaged(f"{images} holds {found} images, but {labels} holds {count} labels")
            pieces = _data(file, images, found * shape[0] * shape[1], step=shape[0] * shape[1])
            writer.images(f"x_{part}", shape, (np.frombuffer(piece, np.uint8).reshape(-1, *shape) for piece in pieces))
        writer.array(f"y_{part}", numbers)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with cast(BinaryIO, gzip.open(path) if path.suffix == ".gz" else open(path, "rb")) as file:
            yield file
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _damaged(f"{path} is not a complete gzip file ({error})") from error


def _header(file: BinaryIO, path: Path, dimensions: int) -> list[int]:
    """Read the sizes that an IDX file declares, and check that the file can hold that much data."""
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0":
        raise _damaged(f"{path} is not an IDX file: it begins with {magic[:2].hex() or 'nothing'} instead of 0000")
    if magic[2] != 8 or magic[3] != dimensions:
        raise _damaged(
            f"{path} has IDX type 0x{magic[2]:02x} and {magic[3]} dimensions; expected bytes (0x08) and {dimensions}"
        )
    raw = file.read(4 * dimensions)
    if len(raw) < 4 * dimensions:
        raise _damaged(f"{path} ends within its header")
    sizes = [int(size) for size in np.frombuffer(raw, ">u4")]
    declared, actual = 4 + len(raw) + int(np.prod([1, *sizes], dtype=object)), os.path.getsize(path)
    if path.suffix == ".gz":
        if declared > actual * _MAX_EXPANSION:
            raise _damaged(f"{path} declares {declared:,} bytes, more than {actual:,} gzipped bytes can hold")
    elif declared != actual:
        raise _damaged(f"{path} has {actual:,} bytes, but its header declares {declared:,}")
    return sizes


def _data(file: BinaryIO, path: Path, size: int, *, step: int = 1) -> Iterator[bytes]:
    """Read exactly ``size`` bytes in pieces of whole steps, and check that the file ends there."""
    step *= max(1, CHUNK // step)
    for first in range(0, size, step):
        wanted = min(step, size - first)
        piece = file.read(wanted)
        if len(piece) < wanted:
            raise _damaged(f"{path} ends after {first + len(piece):,} of the {size:,} bytes it declares")
        yield piece
    if file.read(1):
        raise _damaged(f"{path} has more than the {size:,} bytes it declares")


def _damaged(what: str) -> UserError:
    return UserError(f"{what}; fetch it again.", code="FEDAF-DATA-DAMAGED")
