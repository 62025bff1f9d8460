"""Unpacking archives of unknown origin: completely or not at all, and only into the expected folder."""

import gzip
import json
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedaf.data.fetch.download import DownloadObserver
from fedaf.errors import DownloadFailed, UserError

_MAX_EXPANSION = 20  # times the size of the archive: images hardly compress
_ALWAYS_ALLOWED = 64 << 20  # bytes
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)

_Archive = zipfile.ZipFile | tarfile.TarFile


@dataclass(frozen=True)
class _Member:
    """A file or folder in an archive; ``refused`` says why it must not be unpacked."""

    name: str
    size: int
    is_file: bool
    refused: str


def unpack(archive: Path, folder: str, into: Path, *, sha256: str, observer: DownloadObserver) -> None:
    """Unpack ``folder`` of an archive to ``into/folder``, and write a receipt next to it.

    After a kill, the folder is either complete or absent.

    Raises:
        DownloadFailed: If the archive is damaged, or a member is not a plain file with a safe path.
        UserError: If the disk is too full.
    """
    temporary = into / f".unpacking-{folder}"
    if temporary.exists():  # from a killed process
        shutil.rmtree(temporary)
    temporary.mkdir()
    try:
        with _open(archive) as opened:
            wanted = _checked(archive, opened, folder)
            free, needed = shutil.disk_usage(into).free, sum(member.size for member in wanted)
            if free < needed:
                what = f"{archive} unpacks to {needed} bytes, but only {free} are free in {into}; free some space."
                raise UserError(what, code="FEDAF-FETCH-DISK")
            _extract(opened, wanted, temporary, f"unpacking {archive.name}", observer)
        receipt = {"sha256": sha256, **_tally(temporary / folder)}
        _receipt(archive).write_text(json.dumps(receipt))
        (temporary / folder).rename(into / folder)
    except _DAMAGE as error:
        what = f"{archive} cannot be unpacked ({error}); remove it and fetch it again."
        raise DownloadFailed(what, code="FEDAF-FETCH-DAMAGED") from error
    finally:
        shutil.rmtree(temporary)


def is_unpacked(archive: Path, folder: Path, *, sha256: str) -> bool:
    """Return whether ``folder`` was unpacked from the archive with this checksum and has the same files and bytes."""
    try:
        receipt = json.loads(_receipt(archive).read_text())
    except (OSError, ValueError):
        return False
    return bool(receipt == {"sha256": sha256, **_tally(folder)})


def _checked(archive: Path, opened: _Archive, folder: str) -> list[_Member]:
    """Check all members, and return those of ``folder``."""
    limit = max(_ALWAYS_ALLOWED, _MAX_EXPANSION * archive.stat().st_size)
    wanted, total = [], 0
    for member in _members(opened):
        parts = PurePosixPath(member.name).parts
        outside = member.name.startswith("/") or ".." in parts or "\\" in member.name
        if refused := member.refused or ("a path outside of the folder" if outside else ""):
            raise _unsafe(archive, f"{member.name!r:.200}, {refused}")
        total += member.size
        if total > limit:
            raise _unsafe(archive, f"more than {limit} bytes when expanded")
        if parts[:1] == (folder,):
            wanted.append(member)
    if not any(member.is_file for member in wanted):
        raise _unsafe(archive, f"no folder {folder!r} with files in it")
    return wanted


def _unsafe(archive: Path, what: str) -> DownloadFailed:
    return DownloadFailed(f"{archive} was not unpacked: it holds {what}.", code="FEDAF-FETCH-UNSAFE")


def _members(opened: _Archive) -> Iterator[_Member]:
    if isinstance(opened, zipfile.ZipFile):
        for info in opened.infolist():
            link, encrypted = stat.S_ISLNK(info.external_attr >> 16), info.flag_bits & 1
            refused = "a link" if link else "an encrypted file" if encrypted else ""
            yield _Member(info.filename, info.file_size, not info.is_dir(), refused)
    else:
        for item in opened:
            refused = "" if item.isfile() or item.isdir() else "neither a file nor a folder"
            yield _Member(item.name, item.size, item.isfile(), refused)


def _extract(opened: _Archive, wanted: list[_Member], into: Path, title: str, observer: DownloadObserver) -> None:
    done = 0
    observer.began(title, 0, sum(member.size for member in wanted))
    try:
        for member in wanted:
            opened.extract(member.name, into)
            done += member.size
            observer.advanced(done)
    finally:
        observer.ended()


def _open(archive: Path) -> _Archive:
    if archive.suffix == ".zip":
        return zipfile.ZipFile(archive)
    tar = tarfile.open(archive)  # noqa: SIM115
    tar.extraction_filter = tarfile.data_filter
    return tar


def _tally(folder: Path) -> dict[str, int]:
    files = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    return {"files": len(files), "bytes": sum(os.lstat(file).st_size for file in files)}


def _receipt(archive: Path) -> Path:
    return archive.with_name(f".{archive.name}.receipt")
