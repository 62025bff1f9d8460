"""Image files in folders that say what they show: which files belong to which split, class and domain, and their
conversion. Where nobody says which images are for testing, a fixed fifth of each class of each domain is."""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedaf.common.naming import printable
from fedaf.data.readers.images import ENDINGS, Mode, Tally, Watch, common, decode_all, quietly
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import Writer
from fedaf.protocol import Key, UserError

log = logging.getLogger(__name__)
_HELD_OUT = Key(20240618)  # the test split of a tree is the same in every run, whatever its seed
_DEEPEST = 3
DEFAULT_SIDE = 64
_MODES: dict[int, Mode] = {1: "L", 3: "RGB"}  # by channels

Look = tuple[tuple[int, int], Mode]  # the size (width, height) and the mode that all images are brought to


@dataclass(frozen=True)
class Sample:
    """An image file below the root of its tree, with ``/`` between folders."""

    file: str
    label: str
    domain: str = ""


@dataclass(frozen=True)
class Tree:
    root: Path
    train: Sequence[Sample]
    test: Sequence[Sample]
    classes: Sequence[str]
    domains: Sequence[str] = ()

    def source(
        self,
        reader: str,
        *,
        side: int | None = None,
        colour: bool = False,
        shape: tuple[int, int, int] | None = None,
        lists: Iterable[Path] = (),
        watch: Watch | None = None,
    ) -> Source:
        """How to convert it: resized to squares of ``side`` pixels or, without one, as large as the images are if
        they are alike and small; with ``colour`` as RGB even where all are grey. A ``shape`` (channels, height, width)
        leaves nothing to the images."""
        files = [*(self.root / sample.file for sample in (*self.train, *self.test)), *lists]
        settings: tuple[object, ...] = (side, colour) if shape is None else (*shape, *self.classes)
        look = partial(_look, self, side, colour, shape)
        return Source(f"{reader} 1", self.root, files, partial(_write, self, look, watch), settings)


def image_files(folder: Path) -> list[str]:
    """The image files below a folder, sorted, with ``/`` between the parts of their names; links that lead nowhere are
    among them, to be reported later. Hidden files and others are ignored, and counted in the log."""
    found: list[str] = []
    ignored = 0
    pending = [("", 0)]
    while pending:
        inside, depth = pending.pop()
        for item in os.scandir(folder / inside):
            name = f"{inside}{item.name}"
            if item.name.startswith("."):
                ignored += 1
            elif item.is_dir() and depth < _DEEPEST:  # a link to a folder above would have no end
                pending.append((f"{name}/", depth + 1))
            elif (item.is_file() or item.is_symlink()) and os.path.splitext(name)[1].lower() in ENDINGS:
                found.append(name)
            else:
                ignored += 1
    if ignored:
        log.info("%d files in %s are hidden or no images, and were ignored", ignored, folder)
    return sorted(found)


def hold_out(samples: Iterable[Sample]) -> tuple[list[Sample], list[Sample]]:
    """Training and test split: four fifths and one fifth of each class of each domain, drawn by their names alone."""
    groups: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.domain, sample.label].append(sample)
    train: list[Sample] = []
    test: list[Sample] = []
    for group, held in sorted(groups.items()):
        order = _HELD_OUT.derive(*group).numpy().permutation(len(held))
        out = set(order[: round(len(held) / 5)].tolist())
        for number, sample in enumerate(held):
            (test if number in out else train).append(sample)
    return train, test


def _write(tree: Tree, look: Callable[[], Look], watch: Watch | None, writer: Writer) -> None:
    classes = {name: number for number, name in enumerate(tree.classes)}
    domains = {name: number for number, name in enumerate(tree.domains)}
    tally = Tally(len(tree.train) + len(tree.test))
    with quietly():
        size, mode = look()
        for part, samples in (("train", tree.train), ("test", tree.test)):
            shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
            rows: list[int] = []
            names = [sample.file for sample in samples]
            pieces = decode_all(tree.root, names, mode=mode, size=size, tally=tally, watch=watch)
            if not writer.images(f"x_{part}", shape, _noting(pieces, rows)):
                name, reason = next(iter(tally.unreadable.items()))
                raise UserError(
                    f"none of the {len(samples)} image files for the {part} split of {tree.root} can be read "
                    f"({name}: {reason})."
                )
            writer.array(f"y_{part}", np.array([classes[samples[row].label] for row in rows]))
            if domains:
                writer.array(f"domain_{part}", np.array([domains[samples[row].domain] for row in rows]))
    writer.texts("classes", map(printable, classes))
    if domains:
        writer.texts("domains", map(printable, domains))
    writer.array("files", np.array(tally.files))
    unreadable = dict(sorted(tally.unreadable.items()))
    writer.texts("unreadable", unreadable)
    writer.texts("reasons", unreadable.values())


def _look(tree: Tree, side: int | None, colour: bool, shape: tuple[int, int, int] | None) -> Look:
    if shape:
        return (shape[2], shape[1]), _MODES[shape[0]]
    if side and colour:
        return (side, side), "RGB"
    own, mode = common([tree.root / sample.file for sample in (*tree.train, *tree.test)], largest=DEFAULT_SIDE)
    return ((side, side) if side else own or (DEFAULT_SIDE, DEFAULT_SIDE)), ("RGB" if colour else mode)


def _noting(pieces: Iterable[tuple[np.ndarray, list[int]]], rows: list[int]) -> Iterator[np.ndarray]:
    for images, numbers in pieces:
        rows += numbers
        yield images
