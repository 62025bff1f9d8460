"""Which source code is running."""

import os
import subprocess
from pathlib import Path

_CHECKOUT = Path(__file__).parents[3]


def source_commit() -> str | None:
    """Return the git commit of the checkout that fedaf runs from.

    Returns:
        The commit, with ``+`` appended if files differ from it. ``FEDAF_COMMIT`` in the environment overrides it, for
        a copy of a checkout without its history. ``None`` for an installed package.
    """
    if given := os.environ.get("FEDAF_COMMIT"):
        return given
    ours = _CHECKOUT / "src" / "fedaf" / "common" / "source.py"
    if not (_CHECKOUT / ".git").exists() or not ours.is_file() or not ours.samefile(__file__):
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return commit + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(_CHECKOUT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
