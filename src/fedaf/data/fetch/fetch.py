"""Fetching the official files of a data set: download, verify, unpack. Files that are already there are kept."""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fedaf.common.naming import nearest
from fedaf.data.fetch.download import DownloadObserver, download
from fedaf.data.fetch.unpack import is_unpacked, unpack
from fedaf.data.registry import DATASETS
from fedaf.data.spec import OfficialFile
from fedaf.errors import DownloadFailed, UserError


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
    if not DATASETS.knows(name) or name.startswith(("npz:", "folder:")):
        raise UserError(
            f"{name!r} cannot be fetched{nearest(name, DATASETS)}; expected one of {', '.join(DATASETS)}.",
            code="FEDAF-FETCH-UNKNOWN",
        )
    spec = DATASETS.find(name)
    if spec.origin:
        observer.said(f"{name} is {spec.origin}; there is nothing to fetch.")
    elif spec.files:
        fetch_files(spec.files, data_dir / spec.name, mirror=mirror, observer=observer)
    elif spec.homepage:
        raise UserError(
            f"{name} can only be downloaded with a browser: get its images from {spec.homepage}, and unpack them so "
            f"that {data_dir / spec.name} holds the folders {', '.join(spec.domains)}.",
            code="FEDAF-FETCH-BY-HAND",
        )
    else:
        raise UserError(
            f"{name!r} names no files to fetch; add files to its SPEC, or copy the data into {data_dir}.",
            code="FEDAF-FETCH-UNKNOWN",
        )


def fetch_files(
    files: Sequence[OfficialFile], folder: Path, *, mirror: str | None = None, observer: DownloadObserver
) -> None:
    """Fetch files into a folder, as ``fetch`` does."""
    if mirror is not None:
        _check_address(mirror)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        for file in files:
            _fetch_one(file, folder, mirror, observer)


def _check_address(mirror: str) -> None:
    try:
        parts = urlsplit(mirror)
        valid = parts.scheme in ("http", "https") and parts.hostname is not None
    except ValueError:
        valid = False
    if not valid:
        raise UserError(
            f"--mirror {mirror!r} is not an address; expected one such as http://host/folder.",
            code="FEDAF-FETCH-MIRROR",
        )


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
        raise UserError(
            f"{unpacked} exists, but was not unpacked from {file.name} by fedaf, or has changed since; use it as "
            "it is, or move it away and fetch again.",
            code="FEDAF-FETCH-CONFLICT",
        )
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
    resumed = download(url, part, size=file.size, observer=observer)
    valid = _sha256(part) == file.sha256
    if not valid and resumed:
        observer.said(f"{file.name} was put together from several transfers and has a wrong checksum; starting over.")
        part.unlink()
        download(url, part, size=file.size, observer=observer)
        valid = _sha256(part) == file.sha256
    if not valid:
        part.unlink()
        raise DownloadFailed(
            f"{url} sent {file.size} bytes that are not the official file (the SHA-256 is not {file.sha256}); they "
            "were deleted. Try again later, or use another server with --mirror.",
            code="FEDAF-FETCH-CHECKSUM",
        )
    os.replace(part, target)
    observer.said(f"{target} is ready; its checksum is right.")


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
            raise UserError(
                f"another fetch is running in {folder}; wait until it ends.", code="FEDAF-FETCH-LOCKED"
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
