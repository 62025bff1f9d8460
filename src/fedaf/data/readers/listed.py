"""Lists of image files that come with a tree, a line each: ``domain/class/file number``."""

from collections.abc import Collection, Sequence
from pathlib import Path

from fedaf.common.naming import printable
from fedaf.data.readers.trees import Sample
from fedaf.protocol import UserError


def missing_domains(what: str, folder: Path, domains: Sequence[str]) -> None:
    """Raise ``UserError`` where not all domains have a folder."""
    if missing := [domain for domain in domains if not (folder / domain).is_dir()]:
        raise UserError(f"{what} in {folder} is not whole: the folder of {', '.join(missing)} is missing.")


def find_list(folders: Sequence[Path], name: str) -> Path | None:
    """A list in one of the folders, or one level below it."""
    for folder in folders:
        below = sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))
        for place in (folder, *below):
            if (place / name).is_file():
                return place / name
    return None


def listed(path: Path, domain: str, classes: Collection[str], *, others: bool) -> list[Sample]:
    """The files of a list, sorted. The folder of a file says its class, as in the published lists its number does too;
    ``others`` passes over files of classes that are not asked for."""
    samples = []
    for number, line in enumerate(path.read_text(errors="surrogateescape").splitlines(), 1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        parts = name.strip().split("/")
        known = len(parts) == 3 and parts[0] == domain and not {"", ".", ".."} & set(parts) and "\0" not in name
        if not known or not label.isdecimal() or not (others or parts[1] in classes):
            raise UserError(
                f"line {number} of {path} is {printable(line)!r:.80}; it must be {domain}/CLASS/FILE and a number."
            )
        if parts[1] in classes:
            samples.append(Sample("/".join(parts), parts[1], domain))
    if not samples:
        raise UserError(f"{path} lists no file of the classes {', '.join(classes)}.")
    return sorted(samples, key=lambda sample: sample.file)
