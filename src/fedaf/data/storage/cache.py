"""Converted copies of data sets, kept between runs in a cache folder."""

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from fedaf.data.storage.form import Damaged, Unwritable, Writer, writing
from fedaf.protocol import UserError

log = logging.getLogger(__name__)
T = TypeVar("T")
_ABANDONED = 24 * 3600  # seconds after which an unfinished copy is that of a process that was killed


@dataclass(frozen=True)
class Source:
    """A data set found on disk in a form of its own. ``reader`` names how it is read, with a version that changes
    when the result does; ``files`` are those it is made of, and ``write`` converts them."""

    reader: str
    root: Path
    files: Sequence[Path]
    write: Callable[[Writer], None]
    settings: tuple[object, ...] = ()

    @property
    def identity(self) -> str:
        """Which data set it is, and how it is read."""
        return f"{self.reader.split()[0]}-" + _digest([self.reader, str(self.root.absolute()), list(self.settings)])

    @property
    def state(self) -> str:
        """Changes when a file is added, removed or written to."""
        return _digest(sorted(_state(path, self.root) for path in self.files))


def folder() -> Path:
    """``$FEDAF_CACHE``, else ``fedaf`` in the user's cache folder."""
    if own := os.environ.get("FEDAF_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "fedaf"


def opened(source: Source, open_copy: Callable[[Path], T]) -> T:
    """Open the converted copy of a source, and make it first where there is none, or only a damaged one."""
    path = folder() / f"{source.identity}-{source.state}.npz"
    if path.exists():
        try:
            return open_copy(path)
        except Damaged as error:
            log.warning("the converted copy of %s was damaged (%s), and is made again", source.root, error)
    _convert(source, path)
    return open_copy(path)


def _convert(source: Source, path: Path) -> None:
    """Under a temporary name until it is whole: whoever looks, or is killed, never leaves or meets half a file."""
    try:
        with writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f"{source.identity}-", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file, Writer(file, path.parent) as writer:
                source.write(writer)
            with writing():
                os.replace(unfinished, path)
        except BaseException:
            os.unlink(unfinished)
            raise
    except Unwritable as error:
        raise UserError(
            f"{source.root} could not be converted into {path.parent} ({error}); "
            "set FEDAF_CACHE to a folder that can be written and has space."
        ) from error
    _remove_older(source, path)


def _remove_older(source: Source, newest: Path) -> None:
    for path in newest.parent.glob(f"{source.identity}-*"):
        with suppress(OSError):  # another process may have removed it, or finished it
            abandoned = path.suffix == ".part" and path.stat().st_mtime < time.time() - _ABANDONED
            if abandoned or (path.suffix == ".npz" and path != newest):
                path.unlink()


def _digest(of: object) -> str:
    return hashlib.sha256(json.dumps(of).encode()).hexdigest()[:20]


def _state(path: Path, root: Path) -> tuple[str, int, int]:
    name = os.fspath(path).removeprefix(os.fspath(root))
    try:
        found = os.stat(path)
    except OSError:
        return name, -1, 0
    return name, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)  # the latter tells of permissions too
