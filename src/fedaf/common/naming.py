"""Names: suggestions for mistyped names, and names that are safe to print."""

import difflib
from collections.abc import Iterable
from pathlib import PurePath


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a clause such as `` (did you mean 'fedaf'?)``, or an empty string if no known name is close."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def slug(name: str) -> str:
    """Return a name that is safe as a directory."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in PurePath(name).name)


def printable(name: str) -> str:
    """Return a name on one line, with unprintable characters replaced by ``?``."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
