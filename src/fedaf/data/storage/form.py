"""The stored form of a data set: an uncompressed .npz, whose images are memory-mapped.

``x_train`` and ``x_test`` are uint8 [N, H, W, C] (or [N, H, W]), ``y_train`` and ``y_test`` integers or names; MedMNIST
calls them ``train_images``, ``train_labels`` and so on. Optional arrays are ``classes``, ``domain_train``,
``domain_test``, ``domains``, ``client_train`` and ``clients``. A file for training alone, such as a condensed set, has
no ``x_test`` and ``y_test``. Converted files also have the number of image ``files``, the names of those that were
``unreadable``, and the ``reasons``.
"""

import os
import struct
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self

import numpy as np

from fedaf.common.naming import printable
from fedaf.protocol import UserError

CHUNK = 4 << 20  # bytes of images in memory during a conversion
_VERIFIED = 1 << 30  # bytes up to which the checksum is verified on opening: about a second
_MAX_SIZE = 64 << 30
_SUSPICIOUS_SIZE = 1 << 30
_MAX_EXPANSION = 1000
#: Other names of arrays: those of MedMNIST.
OTHER_NAMES = {
    "x_train": "train_images",
    "y_train": "train_labels",
    "x_test": "test_images",
    "y_test": "test_labels",
}
#: The arrays that a file may have besides those in ``OTHER_NAMES``.
OPTIONAL = ("classes", "domain_train", "domain_test", "domains", "client_train", "clients")
#: What a file with a condensed set says besides: the round of each image, and how often the server drew it.
CONDENSED_ONLY = ("round_train", "weight_train")


class Damaged(ValueError):
    """A file is not a complete .npz, or lacks an array."""


class Unwritable(Exception):
    """The converted copy cannot be written; a different problem than a source that cannot be read."""


@dataclass(frozen=True)
class Member:
    """The header of an array in an .npz; its data begin ``start`` bytes into the member."""

    info: zipfile.ZipInfo
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int

    @property
    def stored(self) -> bool:
        return self.info.compress_type == zipfile.ZIP_STORED


class Npz:
    """An .npz file from which only the requested arrays are read.

    Raises:
        Damaged: If the file is damaged.
        UserError: If an array is too large when expanded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._damage():
            self._zip = zipfile.ZipFile(path)
        self.names = [name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def name_of(self, array: str) -> str:
        """Return the name that the file has for an array: ``x_train`` or ``train_images``."""
        other = OTHER_NAMES.get(array, array)
        return other if other in self and array not in self else array

    @property
    def parts(self) -> tuple[str, ...]:
        """The splits of the file: ``train``, and ``test`` if it has images or labels of a test split."""
        has_test = any(self.name_of(name) in self for name in ("x_test", "y_test"))
        return ("train", "test") if has_test else ("train",)

    def member(self, name: str) -> Member:
        """Read the header of an array and check it against the size of the data."""
        with self._damage():
            info = self._zip.getinfo(f"{name}.npy")
        self._refuse_bomb(info)
        form = np.lib.format
        with self._damage(), self._zip.open(info) as stream:
            old = form.read_magic(stream) == (1, 0)
            shape, fortran, dtype = (form.read_array_header_1_0 if old else form.read_array_header_2_0)(stream)
            start = stream.tell()
            if dtype.hasobject:
                raise ValueError(
                    f"{name} holds Python objects, which are not loaded; save it as numbers or as text, "
                    "with astype(str)"
                )
            if min(shape, default=0) < 0 or start + prod(shape) * dtype.itemsize != info.file_size:
                raise ValueError(f"{name} is not an array of plain numbers with the length that its header declares")
            if info.compress_type == zipfile.ZIP_STORED and info.compress_size != info.file_size:
                raise ValueError(f"{name} is stored with a wrong length")
        return Member(info, dtype, shape, fortran, start)

    def array(self, name: str) -> np.ndarray:
        """Read a whole array."""
        member = self.member(name)
        with self._damage(), self._zip.open(member.info) as stream:
            array: np.ndarray = np.lib.format.read_array(stream, allow_pickle=False)
            stream.read(1)  # zipfile compares the checksum at the end
            return array

    def mapped(self, name: str) -> np.ndarray:
        """Memory-map an uncompressed array, copy-on-write because PyTorch needs writable memory."""
        member = self.member(name)
        file: Any = self._zip.fp
        with self._damage():
            if member.info.file_size <= _VERIFIED:
                with self._zip.open(member.info) as stream:
                    while stream.read(CHUNK):
                        pass
            file.seek(member.info.header_offset)
            name_length, extra_length = struct.unpack("<26xHH", file.read(30))  # of the member's local header
            offset = member.info.header_offset + 30 + name_length + extra_length + member.start
            if offset + prod(member.shape) * member.dtype.itemsize > os.fstat(file.fileno()).st_size:
                raise ValueError(f"{name} extends past the end of the file")
            order: Literal["C", "F"] = "F" if member.fortran else "C"
            array: np.ndarray = np.memmap(file, member.dtype, "c", offset=offset, shape=member.shape, order=order)
            return array

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """Yield an array in chunks of a few megabytes; it may be compressed."""
        member = self.member(name)
        if member.fortran:  # its rows are not contiguous
            yield self.array(name)
            return
        row = prod(member.shape[1:]) * member.dtype.itemsize
        step = max(1, CHUNK // max(1, row))
        with self._damage(), self._zip.open(member.info) as stream:
            stream.read(member.start)
            for first in range(0, member.shape[0], step):
                count = min(step, member.shape[0] - first)
                yield np.frombuffer(stream.read(count * row), member.dtype).reshape(count, *member.shape[1:])
            stream.read(1)

    def _refuse_bomb(self, info: zipfile.ZipInfo) -> None:
        size, packed = info.file_size, info.compress_size
        if size > _MAX_SIZE or (size > _SUSPICIOUS_SIZE and size > _MAX_EXPANSION * packed):
            what = f"{info.filename} in {self.path} would expand from {packed:,} to {size:,} bytes"
            limit = f"at most {_MAX_SIZE >> 30} GiB, and {_MAX_EXPANSION} times its compressed size"
            raise UserError(f"{what}; expected {limit}.", code="FEDAF-DATA-TOO-LARGE")

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Turn what zipfile, zlib and numpy raise on damaged bytes, which may be anything, into ``Damaged``."""
        try:
            yield
        except Exception as error:
            reason = printable(f"{type(error).__name__}: {error}")
            raise Damaged(f"{self.path} is damaged ({reason:.200})") from error


@contextmanager
def writing() -> Iterator[None]:
    """Turn an ``OSError`` into ``Unwritable``."""
    try:
        yield
    except OSError as error:
        raise Unwritable(str(error)) from error


class Writer:
    """Writes a data set in the stored form. Images are streamed: their number need not be known in advance."""

    def __init__(self, file: BinaryIO, spool: Path) -> None:
        self._zip = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        self._spool = spool

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with writing():
            self._zip.close()

    def images(self, name: str, shape: tuple[int, ...], chunks: Iterable[np.ndarray]) -> int:
        """Write arrays [n, *shape] one after the other; return the number of images.

        They are spooled to an unnamed file, because the header with their number comes first.
        """
        with writing():
            spool = tempfile.TemporaryFile(dir=self._spool)  # noqa: SIM115
        with spool:
            count = 0
            for chunk in chunks:
                with writing():
                    spool.write(np.ascontiguousarray(chunk, np.uint8).reshape(len(chunk), *shape).data)
                count += len(chunk)
            with writing(), self._zip.open(f"{name}.npy", "w", force_zip64=True) as member:
                spool.seek(0)
                header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
                np.lib.format.write_array_header_1_0(member, header)
                while data := spool.read(CHUNK):
                    member.write(data)
        return count

    def array(self, name: str, array: np.ndarray) -> None:
        with writing(), self._zip.open(f"{name}.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, array, allow_pickle=False)

    def texts(self, name: str, texts: Iterable[str]) -> None:
        """Write names as an array of strings."""
        self.array(name, np.array(list(texts), dtype=np.str_))
