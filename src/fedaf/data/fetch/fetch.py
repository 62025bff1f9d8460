"""Fetching the official files of a data set: downloaded, checked, unpacked, and left alone when they are there."""

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from fedaf.common.naming import nearest
from fedaf.data.fetch.download import Watch, download
from fedaf.data.fetch.remotes import REMOTES, Remote
from fedaf.data.fetch.unpack import is_unpacked, unpack
from fedaf.errors import DownloadFailed, UserError

_PACS = "https://domaingeneralization.github.io"


def fetch(name: str, data_dir: Path, *, mirror: str | None = None, watch: Watch | None = None) -> None:
    """Bring the official files of a data set to ``data_dir/name``. ``mirror`` is an address below which all of them
    are found by their names; the checksums stay the same. What is there and right is not downloaded again."""
    watch = watch or Watch()
    if name == "digits":
        watch.said("digits is part of scikit-learn; there is nothing to fetch.")
        return
    files, place = _files(name, data_dir), data_dir / name
    if mirror is not None:
        _check_address(mirror)
    place.mkdir(parents=True, exist_ok=True)
    with _alone(place):
        for remote in files:
            _bring(remote, place, mirror, watch)


def _files(name: str, data_dir: Path) -> tuple[Remote, ...]:
    if name == "pacs":
        raise UserError(
            f"pacs can only be downloaded with a browser: follow the link to its images at {_PACS}, and unpack them so "
            f"that {data_dir / 'pacs'} holds the folders art_painting, cartoon, photo and sketch."
        )
    if name not in REMOTES:
        raise UserError(f"{name!r} cannot be fetched{nearest(name, REMOTES)}; allowed is one of {', '.join(REMOTES)}.")
    return REMOTES[name]


def _check_address(mirror: str) -> None:
    try:
        parts = urlsplit(mirror)
        is_address = parts.scheme in ("http", "https") and parts.hostname is not None
    except ValueError:
        is_address = False
    if not is_address:
        raise UserError(f"--mirror {mirror!r} is not an address; give one such as http://host/folder.")


def _bring(remote: Remote, place: Path, mirror: str | None, watch: Watch) -> None:
    """One file, or what its archive holds."""
    target = place / remote.name
    if remote.folder is None:
        _bring_file(remote, target, mirror, watch)
        return
    folder = place / remote.folder
    if is_unpacked(target, folder, sha256=remote.sha256):
        watch.said(f"{folder} is there, as it was unpacked from {remote.name}.")
        return
    if folder.exists():
        raise UserError(
            f"{folder} is there, but it is not, or no longer, what fedaf unpacked from {remote.name}; use it as it is, "
            "or move it away and fetch again."
        )
    _bring_file(remote, target, mirror, watch)
    unpack(target, remote.folder, place, sha256=remote.sha256, watch=watch)
    target.unlink()  # its content is there now, and the receipt says which archive it came from
    watch.said(f"{folder} is there.")


def _bring_file(remote: Remote, target: Path, mirror: str | None, watch: Watch) -> None:
    import pooch

    if target.exists():
        if pooch.file_hash(str(target)) == remote.sha256:
            watch.said(f"{target} is there, and is the official file.")
            return
        watch.said(f"{target} is not the official file and will be replaced.")
    url = f"{mirror.rstrip('/')}/{remote.name}" if mirror else remote.url
    part = target.with_name(f"{target.name}.part")
    continued = download(url, part, size=remote.size, watch=watch)
    right = _check(remote, part, target)
    if not right and continued:
        watch.said(f"{remote.name}, put together from several transfers, has the wrong checksum; starting over.")
        download(url, part, size=remote.size, watch=watch)
        right = _check(remote, part, target)
    if not right:
        raise DownloadFailed(
            f"{url} sent {remote.size} bytes that are not the official file (its SHA-256 is not {remote.sha256}); they "
            "were thrown away: try again later, or name another server with --mirror."
        )
    watch.said(f"{target} is there; its checksum is right.")


def _check(remote: Remote, part: Path, target: Path) -> bool:
    """Move the part to its place if it is the official file, and throw it away if not. It is checked in a folder apart
    and under a second name, so that a kill at this point neither costs the download nor leaves litter."""
    import pooch

    def hand_over(_url: str, output: str, _pooch: object) -> None:
        os.unlink(output)
        try:
            os.link(part, output)
        except OSError:  # a file system without links
            os.replace(part, output)

    pooch.get_logger().setLevel(logging.WARNING)  # it would announce what the watch already heard
    aside = part.with_name(".checking")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        found = pooch.retrieve(remote.url, f"sha256:{remote.sha256}", target.name, str(aside), downloader=hand_over)
        os.replace(found, target)
    except ValueError:  # pooch's word for a wrong checksum
        part.unlink(missing_ok=True)
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    part.unlink(missing_ok=True)
    return True


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Two fetches would write into the same files; a file system without locks goes without."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another fetch is at work in {place}; wait for it to end.") from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)
