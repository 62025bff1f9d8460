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
