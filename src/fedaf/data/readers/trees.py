"""Trees of image files: the split, class and domain of each file, and the conversion of all files.

Without a given test split, a fixed fifth of each class of each domain is held out for testing.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedaf.common.naming import printable
from fedaf.data.readers.images import ENDINGS, Shape, Tally, decode_all, quietly, target
from fedaf.data.spec import Progress
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import Writer
from fedaf.protocol import Key, UserError

log = logging.getLogger(__name__)
_SPLIT_KEY = Key(20240618)  # the test split is the same in every run, independent of its seed
_MAX_DEPTH = 3


@dataclass(frozen=True)
class Sample:
    """An image file by its path below the root of the tree, with ``/`` between folders."""

    file: str
    label: str
    domain: str = ""
    client: str = ""


@dataclass(frozen=True)
class Tree:
    """The image files of a data set, below ``root``."""

    root: Path
    train: Sequence[Sample]
    test: Sequence[Sample]
    classes: Sequence[str]
    domains: Sequence[str] = ()
    clients: Sequence[str] = ()

    def source(
        self,
        reader: str,
        *,
        side: int | None = None,
        colour: bool = False,
        shape: Shape | None = None,
        lists: Iterable[Path] = (),
        progress: Progress = None,
        settings: tuple[object, ...] = (),
    ) -> Source:
        """Return how to convert the tree.

        Args:
            reader: Name of the reader, for the cache.
            side: Resize to squares of this side; ``None`` keeps the size if all images have the same small size.
            colour: Convert to RGB even if all images are grey.
            shape: Convert to this shape (channels, height, width), instead of ``side`` and ``colour``.
            lists: Further files that decide what the tree holds.
            progress: Called while files are decoded.
            settings: Further settings that the tree depends on.
        """
        files = [*(self.root / sample.file for sample in (*self.train, *self.test)), *lists]
        converted: tuple[object, ...] = (side, colour) if shape is None else (*shape, *self.classes)
        write = partial(_write, self, side, colour, shape, progress)
        return Source(f"{reader} 1", self.root, files, write, (*converted, *settings))


def image_files(folder: Path) -> list[str]:
    """Return the image files below a folder, sorted, with ``/`` between folders.

    Broken links are included, to be reported as unreadable. Hidden and other files are ignored and counted in
    the log.
    """
    found: list[str] = []
    ignored = 0
    pending = [("", 0)]
    while pending:
        inside, depth = pending.pop()
        for item in os.scandir(folder / inside):
            name = f"{inside}{item.name}"
            if item.name.startswith("."):
                ignored += 1
            elif item.is_dir() and depth < _MAX_DEPTH:  # a link to a parent folder would never end
                pending.append((f"{name}/", depth + 1))
            elif (item.is_file() or item.is_symlink()) and os.path.splitext(name)[1].lower() in ENDINGS:
                found.append(name)
            else:
                ignored += 1
    if ignored:
        log.info("ignored %d files in %s that are hidden or not images", ignored, folder)
    return sorted(found)


def hold_out(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Split each class of each domain: four fifths for training, one fifth for testing, the same on every machine."""
    for_test = held_out([(sample.domain, sample.label) for sample in samples])
    train = sorted((sample for row, sample in enumerate(samples) if row not in for_test), key=_group)
    return train, sorted((sample for row, sample in enumerate(samples) if row in for_test), key=_group)


def held_out(groups: Sequence[tuple[str, str]]) -> set[int]:
    """Return a fixed fifth of the rows of each group, a domain and a class, for testing."""
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        rows[group].append(row)
    return {
        members[number]
        for group, members in rows.items()
        for number in _SPLIT_KEY.derive(*group).numpy().permutation(len(members))[: round(len(members) / 5)]
    }


def _group(sample: Sample) -> tuple[str, str]:
    return sample.domain, sample.label


def _write(tree: Tree, side: int | None, colour: bool, given: Shape | None, progress: Progress, writer: Writer) -> None:
    classes = {name: number for number, name in enumerate(tree.classes)}
    domains = {name: number for number, name in enumerate(tree.domains)}
    clients = {name: number for number, name in enumerate(tree.clients)}
    tally = Tally(len(tree.train) + len(tree.test))
    with quietly():
        files = [tree.root / sample.file for sample in (*tree.train, *tree.test)]
        size, mode = target(tree.root, lambda: files, side, colour, given)
        for part, samples in (("train", tree.train), ("test", tree.test)):
            shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
            rows: list[int] = []
            named = ((sample.file, tree.root / sample.file) for sample in samples)
            pieces = decode_all(named, mode=mode, size=size, tally=tally, progress=progress)
            if not writer.images(f"x_{part}", shape, record_rows(pieces, rows)):
                name, reason = tally.failures[-1]  # of this split, because all its files failed
                what = f"none of the {len(samples)} image files for the {part} split of {tree.root} can be read"
                raise UserError(f"{what} ({name}: {reason}).", code="FEDAF-DATA-UNREADABLE")
            writer.array(f"y_{part}", np.array([classes[samples[row].label] for row in rows]))
            if domains:
                writer.array(f"domain_{part}", np.array([domains[samples[row].domain] for row in rows]))
            if clients and part == "train":
                writer.array("client_train", np.array([clients[samples[row].client] for row in rows]))
    writer.texts("classes", map(printable, classes))
    if domains:
        writer.texts("domains", map(printable, domains))
    if clients:
        writer.texts("clients", map(printable, clients))
    write_tally(tally, writer)


def write_tally(tally: Tally, writer: Writer) -> None:
    """Write how many image files there are, which of them are unreadable, and why."""
    writer.array("files", np.array(tally.files))
    failures = sorted(tally.failures)
    writer.texts("unreadable", (name for name, _ in failures))
    writer.texts("reasons", (reason for _, reason in failures))


def record_rows(pieces: Iterable[tuple[np.ndarray, list[int]]], rows: list[int]) -> Iterator[np.ndarray]:
    """Yield the images of ``decode_all``, and append their indices to ``rows``."""
    for images, numbers in pieces:
        rows += numbers
        yield images
