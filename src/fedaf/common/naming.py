"""Names: suggestions for mistyped ones, and strange ones made fit to print."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause such as ``(did you mean 'fedaf'?)``, or nothing where no known name is close."""
    close = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""


def printable(name: str) -> str:
    """A name from elsewhere, such as a file's, in one line that any terminal and file can take."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
