"""Archives from outside, unpacked whole or not at all, and nowhere but where they should be."""

import gzip
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from fedaf.data.fetch.download import Watch
from fedaf.errors import DownloadFailed, UserError

_MOST_EXPANSION = 20  # times the archive's own size: pictures hardly shrink
_ALWAYS_ALLOWED = 64 << 20
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)


@dataclass(frozen=True)
class _Entry:
    """A file or folder in an archive; ``kind`` is empty for these, and says what it is for anything else."""

    name: str
    size: int
    kind: str
    is_file: bool


class _Archive(Protocol):
    def entries(self) -> Iterator[_Entry]: ...

    def extract(self, name: str, into: Path) -> None: ...


def unpack(archive: Path, folder: str, into: Path, *, sha256: str, watch: Watch) -> None:
    """Unpack the one ``folder`` of an archive to ``into/folder``, and leave a receipt beside it. A kill leaves either
    all of it or nothing of that name."""
    temporary = into / f".unpacking-{folder}"
    if temporary.exists():  # of a fetch that was killed
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        with _open(archive) as opened:
            wanted = _checked(archive, opened, folder)
            free, needed = shutil.disk_usage(into).free, sum(entry.size for entry in wanted)
            if free < needed:
                raise UserError(f"{archive} unpacks to {needed} bytes, but only {free} are free in {into}; make room.")
            _extract(opened, wanted, temporary, f"unpacking {archive.name}", watch)
        receipt = {"sha256": sha256, **_tally(temporary / folder)}
        _receipt(archive).write_text(json.dumps(receipt))
        (temporary / folder).rename(into / folder)
    except _DAMAGE as error:
        raise DownloadFailed(f"{archive} cannot be unpacked ({error}); remove it and fetch it again.") from error
    finally:
        shutil.rmtree(temporary)


def is_unpacked(archive: Path, folder: Path, *, sha256: str) -> bool:
    """Whether ``folder`` is what ``unpack`` made of the archive with this checksum: as many files and bytes."""
    try:
        receipt = json.loads(_receipt(archive).read_text())
    except (OSError, ValueError):
        return False
    return bool(receipt == {"sha256": sha256, **_tally(folder)})


def _checked(archive: Path, opened: _Archive, folder: str) -> list[_Entry]:
    """The entries of ``folder``, after a look at all of them."""
    most = max(_ALWAYS_ALLOWED, _MOST_EXPANSION * archive.stat().st_size)
    wanted, total = [], 0
    for entry in opened.entries():
        parts = PurePosixPath(entry.name).parts
        if entry.kind:
            raise DownloadFailed(f"{archive} is refused: it holds {entry.name!r:.200}, {entry.kind}.")
        if entry.name.startswith("/") or ".." in parts or "\\" in entry.name:
            raise DownloadFailed(f"{archive} is refused: it holds {entry.name!r:.200}, a name that leads elsewhere.")
        total += entry.size
        if total > most:
            raise DownloadFailed(f"{archive} is refused: it would expand to more than {most} bytes.")
        if parts[:1] == (folder,):
            wanted.append(entry)
    if not any(entry.is_file for entry in wanted):
        raise DownloadFailed(f"{archive} is refused: it holds no folder {folder!r} with files in it.")
    return wanted


def _extract(opened: _Archive, wanted: list[_Entry], into: Path, title: str, watch: Watch) -> None:
    done = 0
    watch.began(title, 0, sum(entry.size for entry in wanted))
    try:
        for entry in wanted:
            opened.extract(entry.name, into)
            done += entry.size
            watch.advanced(done)
    finally:
        watch.ended()


@contextmanager
def _open(archive: Path) -> Iterator[_Archive]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            yield _Zip(zipped)
    else:
        with tarfile.open(archive) as tar:
            yield _Tar(tar)


class _Zip:
    def __init__(self, opened: zipfile.ZipFile) -> None:
        self._opened = opened

    def entries(self) -> Iterator[_Entry]:
        for info in self._opened.infolist():
            kind = "a link" if stat.S_ISLNK(info.external_attr >> 16) else "encrypted" if info.flag_bits & 1 else ""
            yield _Entry(info.filename, info.file_size, kind, not info.is_dir())

    def extract(self, name: str, into: Path) -> None:
        self._opened.extract(name, into)


class _Tar:
    def __init__(self, opened: tarfile.TarFile) -> None:
        self._opened = opened

    def entries(self) -> Iterator[_Entry]:
        for member in self._opened:
            kind = "" if member.isfile() or member.isdir() else "neither a file nor a folder"
            yield _Entry(member.name, member.size, kind, member.isfile())

    def extract(self, name: str, into: Path) -> None:
        self._opened.extract(name, into, filter="data")


def _tally(folder: Path) -> dict[str, int]:
    files = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    return {"files": len(files), "bytes": sum(os.lstat(file).st_size for file in files)}


def _receipt(archive: Path) -> Path:
    return archive.with_name(f".{archive.name}.receipt")
