"""Fetching the official files of a data set: download, verify, unpack. Files that are already there are kept."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fedaf.common.naming import nearest
from fedaf.data.fetch.download import DownloadObserver, download
from fedaf.data.fetch.unpack import is_unpacked, unpack
from fedaf.data.registry import DATASETS, spec_of
from fedaf.data.spec import PATHS, OfficialFile
from fedaf.errors import DownloadFailed, UserError

_unknown = partial(UserError, code="FEDAF-FETCH-UNKNOWN")


def fetch(name: str, data_dir: Path, *, mirror: str | None = None, observer: DownloadObserver | None = None) -> None:
    """Fetch the official files of a data set into ``data_dir/NAME``.

    Args:
        name: A data set with official files.
        data_dir: Folder of the data sets.
        mirror: An address below which all files are found by their names; the checksums stay the same.
        observer: Is told about the progress.

    Raises:
        UserError: If the data set has no official files, or a folder is in the way.
        DownloadFailed: If a file cannot be downloaded, or its checksum is wrong.
    """
    observer = observer or DownloadObserver()
    if not DATASETS.knows(name) or name.startswith(PATHS):
        raise _unknown(f"{name!r} cannot be fetched{nearest(name, DATASETS)}; expected one of {', '.join(DATASETS)}.")
    spec = spec_of(name)
    folder = data_dir / spec.name
    if spec.origin:
        observer.said(f"{name} is {spec.origin}; there is nothing to fetch.")
        return
    if not spec.files and not spec.homepage:
        raise _unknown(f"{name!r} names no files to fetch; add files to its SPEC, or copy the data into {data_dir}.")
    if not spec.files:
        remedy = f"unpack it so that {folder} holds the folders {', '.join(spec.domains)}"
        what = f"{name} must be downloaded with a browser from {spec.homepage}"
        raise UserError(f"{what}; {remedy}.", code="FEDAF-FETCH-BY-HAND")
    if mirror is not None:
        _check_address(mirror)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        for file in spec.files:
            _fetch_one(file, folder, mirror, observer)


def _check_address(mirror: str) -> None:
    try:
        parts = urlsplit(mirror)
        valid = parts.scheme in ("http", "https") and parts.hostname is not None
    except ValueError:
        valid = False
    if not valid:
        what = f"--mirror {mirror!r} is not an address; expected one such as http://host/folder."
        raise UserError(what, code="FEDAF-FETCH-MIRROR")


def _fetch_one(file: OfficialFile, folder: Path, mirror: str | None, observer: DownloadObserver) -> None:
    """Fetch one file; unpack it if it is an archive."""
    target = folder / file.name
    if file.folder is None:
        _fetch_file(file, target, mirror, observer)
        return
    unpacked = folder / file.folder
    if is_unpacked(target, unpacked, sha256=file.sha256):
        observer.said(f"{unpacked} is already there, unpacked from {file.name}.")
        return
    if unpacked.exists():
        what = f"{unpacked} exists, but was not unpacked from {file.name} by fedaf, or has changed since"
        raise UserError(f"{what}; use it as it is, or move it away and fetch again.", code="FEDAF-FETCH-CONFLICT")
    _fetch_file(file, target, mirror, observer)
    unpack(target, file.folder, folder, sha256=file.sha256, observer=observer)
    target.unlink()  # the receipt records which archive was unpacked
    observer.said(f"{unpacked} is ready.")


def _fetch_file(file: OfficialFile, target: Path, mirror: str | None, observer: DownloadObserver) -> None:
    if target.exists():
        if _sha256(target) == file.sha256:
            observer.said(f"{target} is already there and is the official file.")
            return
        observer.said(f"{target} is not the official file and will be replaced.")
    url = f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url
    part = target.with_name(f"{target.name}.part")
    for last in (False, True):
        resumed = download(url, part, size=file.size, observer=observer)
        if _sha256(part) == file.sha256:
            os.replace(part, target)
            observer.said(f"{target} is ready; its checksum is right.")
            return
        part.unlink()
        if last or not resumed:
            break
        observer.said(f"{file.name} was put together from several transfers and has a wrong checksum; starting over.")
    what = f"{url} sent {file.size} bytes whose SHA-256 is not {file.sha256}; they were deleted"
    raise DownloadFailed(f"{what}. Try again later, or give another --mirror.", code="FEDAF-FETCH-CHECKSUM")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep a second fetch out of the folder, if its file system has locks."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = f"another fetch is running in {folder}; wait until it ends."
            raise UserError(what, code="FEDAF-FETCH-LOCKED") from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
