"""Custom image folders: CLASS/IMAGE or DOMAIN/CLASS/IMAGE, with or without train/ and test/ above them."""

import logging
from collections.abc import Sequence
from pathlib import Path

from fedaf.common.naming import printable
from fedaf.data.readers.images import ENDINGS
from fedaf.data.readers.trees import Sample, Tree, hold_out, image_files
from fedaf.data.spec import DatasetSpec, ProgressCallback
from fedaf.data.storage.cache import Source
from fedaf.protocol import UserError

log = logging.getLogger(__name__)
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "eval"}  # in lower case


def source(
    folder: Path, *, image_size: int | None, progress: ProgressCallback | None, spec: DatasetSpec | None = None
) -> Source:
    """Return how to convert the images in a folder; with ``spec``, to its shape and its class numbers."""
    if spec is None:
        return _tree(folder, ()).source("folder", side=image_size, colour=False, progress=progress)
    if not spec.classes:
        raise UserError(
            f"the federation does not name its classes, so the class folders in {folder} have no numbers; use an .npz.",
            code="FEDAF-DATA-CLASSES",
        )
    if spec.shape[0] not in (1, 3):
        raise UserError(
            f"image files have 1 or 3 channels, but the federation has {spec.shape[0]}; use an .npz.",
            code="FEDAF-DATA-SHAPE",
        )
    return _tree(folder, spec.classes).source("folder", shape=spec.shape, progress=progress)


def _tree(folder: Path, names: Sequence[str]) -> Tree:
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}; expected one that holds a folder of images for each class.",
            code="FEDAF-DATA-NOT-FOUND",
        )
    if _is_split(folder):
        train, test = (_samples(folder, part) for part in ("train/", "test/"))
    else:
        train, test = hold_out(_samples(folder, ""))
        if not test:
            raise _layout(
                f"{folder} has too few images to hold out a fifth of each class for testing; "
                "add images, or sort them into train/ and test/."
            )
    classes = sorted({sample.label for sample in train})
    domains = sorted({sample.domain for sample in train} - {""})
    if names:
        if unknown := sorted({sample.label for sample in (*train, *test)} - set(names)):
            raise UserError(
                f"{folder} has images of class {printable(unknown[0])!r}, which is not a class of the federation; "
                f"expected {', '.join(names)}.",
                code="FEDAF-DATA-CLASSES",
            )
    elif len(classes) < 2:
        raise UserError(
            f"{folder} has images of one class only, {printable(classes[0])!r}; at least two are needed.",
            code="FEDAF-DATA-CLASSES",
        )
    for what, known, found in (
        ("class", classes, {sample.label for sample in test}),
        ("domain", domains, {sample.domain for sample in test} - {""}),
    ):
        if untrained := sorted(found - set(known)):
            raise UserError(
                f"{folder} has test images of {what} {printable(untrained[0])!r}, but no training images; add some.",
                code="FEDAF-DATA-CLASSES",
            )
    if bool(domains) != bool(test[0].domain):
        raise _layout(f"{folder} has domain folders in only one of train/ and test/; use the same layout in both.")
    return Tree(folder, train, test, names or classes, domains)


def _is_split(folder: Path) -> bool:
    """Return whether there are train/ and test/. A class may have one of these names: then it holds images directly."""
    folders = {item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")}
    parts = {name for name in folders & {"train", "test"} if not _holds_images(folder / name)}
    alike = sorted(name for name in folders - parts if name.lower() in _SPLITS and not _holds_images(folder / name))
    if alike and parts != {"train", "test"}:
        raise _layout(
            f"{folder} has the folder {alike[0]}, which looks like a split and not like a domain; name the folder of "
            "the training images train and the folder of the test images test."
        )
    if not parts:
        return False
    if len(parts) == 1:
        raise _layout(
            f"{folder} has {parts.pop()}/, but not both train/ and test/; add the other, or move the class folders "
            "directly into it, and a fifth of the images is held out for testing."
        )
    if beside := sorted(folders - parts):
        log.warning(
            "ignoring %s in %s, because it is outside of train/ and test/", ", ".join(map(printable, beside)), folder
        )
    return True


def _holds_images(folder: Path) -> bool:
    return any(item.suffix.lower() in ENDINGS and item.is_file() for item in folder.iterdir())


def _samples(folder: Path, part: str) -> list[Sample]:
    files = image_files(folder / part)
    if not files:
        endings = " ".join(sorted(ending[1:] for ending in ENDINGS))
        raise _layout(f"{folder / part} holds no images in class folders; expected files that end in {endings}.")
    by_depth = {len(file.split("/")): file for file in reversed(files)}
    if len(by_depth) > 1 or not {2, 3} & by_depth.keys():
        shallow, deep = printable(by_depth[min(by_depth)]), printable(by_depth[max(by_depth)])
        example = f"{shallow} and {deep}" if len(by_depth) > 1 else shallow
        raise _layout(f"{folder / part} has {example}; expected CLASS/IMAGE for all, or DOMAIN/CLASS/IMAGE for all.")
    return [Sample(part + file, file.split("/")[-2], "/".join(file.split("/")[:-2])) for file in files]


def _layout(what: str) -> UserError:
    return UserError(what, code="FEDAF-DATA-LAYOUT")
