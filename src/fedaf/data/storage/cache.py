"""The cache of converted data sets."""

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

from fedaf.data.dataset import DataSet
from fedaf.data.storage.form import Damaged, Unwritable, Writer, writing
from fedaf.protocol import UserError

log = logging.getLogger(__name__)
_ABANDONED = 24 * 3600  # seconds after which an unfinished copy belongs to a killed process


@dataclass(frozen=True)
class Source:
    """Files on disk that must be converted to the stored form.

    Args:
        reader: Name and version of the reader; the version changes when the result does.
        root: The folder or file that the user knows.
        files: The files that the result depends on.
        write: Converts the files.
        settings: Settings that the result depends on.
    """

    reader: str
    root: Path
    files: Sequence[Path]
    write: Callable[[Writer], None]
    settings: tuple[object, ...] = ()

    @property
    def identity(self) -> str:
        """A digest of the place of the data set and of how it is read."""
        return f"{self.reader.split()[0]}-" + _digest([self.reader, str(self.root.absolute()), list(self.settings)])

    @property
    def state(self) -> str:
        """A digest that changes when a file is added, removed or changed."""
        return _digest(sorted(_state(path, self.root) for path in self.files))


def folder() -> Path:
    """Return ``$FEDAF_CACHE``, else ``fedaf`` in the user's cache folder."""
    if given := os.environ.get("FEDAF_CACHE"):
        return Path(given)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "fedaf"


def opened(source: Source, open_copy: Callable[[Path], DataSet]) -> DataSet:
    """Open the converted copy of a source; convert it first if the copy is missing or damaged."""
    path = folder() / f"{source.identity}-{source.state}.npz"
    if path.exists():
        try:
            return open_copy(path)
        except Damaged as error:
            log.warning("%s; converting %s again", error, source.root)
    _convert(source, path)
    return open_copy(path)


def _convert(source: Source, path: Path) -> None:
    """Write to a temporary file and rename it, so that no process ever sees half a file."""
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
        what = f"{source.root} could not be converted into {path.parent} ({error})"
        remedy = "set FEDAF_CACHE to a writable folder with free space"
        raise UserError(f"{what}; {remedy}.", code="FEDAF-DATA-CACHE") from error
    _remove_older(source, path)


def _remove_older(source: Source, newest: Path) -> None:
    for path in newest.parent.glob(f"{source.identity}-*"):
        with suppress(OSError):  # another process may have removed or finished it
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
    return name, found.st_size, max(found.st_mtime_ns, found.st_ctime_ns)  # ctime also changes with permissions
