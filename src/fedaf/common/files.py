"""Writing files atomically."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace a file so that readers, and a resumed run, see the old content or the new, never a part."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_durably(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file atomically; when this returns, the new content survives a power failure.

    Args:
        path: The file. Its folder must exist.
        content: The new content.
        mode: The permissions of the file, whatever the umask is.
    """
    temporary = path.with_name(path.name + ".part")
    temporary.unlink(missing_ok=True)  # of a process that was killed
    with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_folder(path.parent)


def make_durable_folder(path: Path, *, mode: int = 0o700) -> None:
    """Create a folder and the folders above it, unless they exist; when this returns, they survive a power failure.

    Args:
        path: The folder.
        mode: The permissions of new folders.
    """
    if path.is_dir():
        return
    make_durable_folder(path.parent, mode=mode)
    path.mkdir(mode=mode, exist_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Write the names of the files in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
