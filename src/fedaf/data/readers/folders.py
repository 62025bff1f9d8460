"""Own images: a folder for each class, or for each domain and in it for each class; with or without train/ and test/
above them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from fedaf.common.naming import printable
from fedaf.data.entries import DatasetSpec
from fedaf.data.readers.images import ENDINGS, Watch
from fedaf.data.readers.trees import Sample, Tree, hold_out, image_files
from fedaf.data.storage.cache import Source
from fedaf.protocol import UserError

log = logging.getLogger(__name__)
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "eval"}  # in any spelling


def source(folder: Path, *, image_size: int | None, watch: Watch | None, entry: DatasetSpec | None = None) -> Source:
    """How to convert the images in a folder; with an ``entry`` to its shape, and numbered as its classes are."""
    if entry is None:
        return _tree(folder, ()).source("folder", side=image_size, colour=False, watch=watch)
    if not entry.classes:
        raise UserError(
            f"the federation does not name its classes, so the folders in {folder} cannot be told; use an .npz."
        )
    if entry.shape[0] not in (1, 3):
        raise UserError(f"image files have 1 or 3 channels, but the federation has {entry.shape[0]}; use an .npz.")
    return _tree(folder, entry.classes).source("folder", shape=entry.shape, watch=watch)


def _tree(folder: Path, names: Sequence[str]) -> Tree:
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; name one that holds a folder of images for each class.")
    if _is_split(folder):
        train, test = (_samples(folder, part) for part in ("train/", "test/"))
    else:
        train, test = hold_out(_samples(folder, ""))
        if not test:
            raise UserError(
                f"{folder} has too few images to hold a fifth of each class out for testing; "
                "add images, or sort them into train/ and test/."
            )
    classes = sorted({sample.label for sample in train})
    domains = sorted({sample.domain for sample in train} - {""})
    if names:
        if strange := sorted({sample.label for sample in (*train, *test)} - set(names)):
            raise UserError(
                f"{folder} has images of class {printable(strange[0])!r}, which the federation does not know; its "
                f"classes are {', '.join(names)}."
            )
    elif len(classes) < 2:
        raise UserError(f"{folder} has images of one class only, {printable(classes[0])!r}; at least two are needed.")
    for what, known, found in (
        ("class", classes, {sample.label for sample in test}),
        ("domain", domains, {sample.domain for sample in test} - {""}),
    ):
        if strange := sorted(found - set(known)):
            raise UserError(
                f"{folder} has test images of {what} {printable(strange[0])!r}, but no training images of it."
            )
    if bool(domains) != bool(test[0].domain):
        raise UserError(f"{folder} has folders for domains in one of train/ and test/ only; sort both alike.")
    return Tree(folder, train, test, names or classes, domains)


def _is_split(folder: Path) -> bool:
    """Whether there are train/ and test/; a folder of images may also be a class that is called so."""
    folders = {item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")}
    parts = {name for name in folders & {"train", "test"} if not _holds_images(folder / name)}
    alike = sorted(name for name in folders - parts if name.lower() in _SPLITS and not _holds_images(folder / name))
    if alike and parts != {"train", "test"}:
        raise UserError(
            f"{folder} has the folder {alike[0]}, which looks like a split and not like a domain; name the training "
            "images' folder train and the test images' folder test."
        )
    if not parts:
        return False
    if len(parts) == 1:
        raise UserError(
            f"{folder} has {parts.pop()}/, but not both train/ and test/; add the other, or put the folders of its "
            "classes directly here, and a fifth of the images is held out for testing."
        )
    if beside := sorted(folders - parts):
        log.warning(
            "%s in %s stands beside train/ and test/, and is ignored", ", ".join(map(printable, beside)), folder
        )
    return True


def _holds_images(folder: Path) -> bool:
    return any(item.suffix.lower() in ENDINGS and item.is_file() for item in folder.iterdir())


def _samples(folder: Path, part: str) -> list[Sample]:
    files = image_files(folder / part)
    if not files:
        endings = " ".join(sorted(ending[1:] for ending in ENDINGS))
        raise UserError(f"{folder / part} holds no images in folders of classes; images end in {endings}.")
    by_depth = {len(file.split("/")): file for file in reversed(files)}
    if len(by_depth) > 1 or not {2, 3} & by_depth.keys():
        shallow, deep = printable(by_depth[min(by_depth)]), printable(by_depth[max(by_depth)])
        example = f"{shallow} and {deep}" if len(by_depth) > 1 else shallow
        raise UserError(
            f"{folder / part} must hold its images as CLASS/IMAGE, or all as DOMAIN/CLASS/IMAGE, but it has {example}."
        )
    return [Sample(part + file, file.split("/")[-2], "/".join(file.split("/")[:-2])) for file in files]
