"""Custom image folders: CLASS/IMAGE or DOMAIN/CLASS/IMAGE, with or without train/ and test/ above them; or any files
with their labels in a CSV file."""

import logging
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path

from fedaf.common.naming import printable
from fedaf.data.problems import not_found, wrong_classes, wrong_column, wrong_layout, wrong_shape
from fedaf.data.readers import csv_labels
from fedaf.data.readers.columns import in_order
from fedaf.data.readers.images import ENDINGS
from fedaf.data.readers.trees import Sample, Tree, hold_out, image_files
from fedaf.data.spec import Columns, DatasetSpec, Progress
from fedaf.data.storage.cache import Source

log = logging.getLogger(__name__)
_SPLITS = {"train", "training", "test", "testing", "val", "valid", "validation", "eval"}  # in lower case


def source(
    folder: Path, image_size: int | None, progress: Progress, spec: DatasetSpec | None, columns: Columns
) -> Source:
    """Return how to convert the images in a folder; with ``spec``, to its shape and its class numbers."""
    if not folder.is_dir():
        raise not_found(f"there is no folder {folder}; expected one that holds a folder of images for each class.")
    table = csv_labels.labels_file(folder)
    if table is None and columns != Columns():
        what = f"{folder} has no labels.csv, so that data.*_column have no effect"
        raise wrong_column(f"{what}; leave them out, or add the file.")
    lists, settings = ([table], ("csv", *astuple(columns))) if table else ([], ())
    tree = partial(_tree, folder, table, columns)
    if spec is None:
        return tree(()).source("folder", side=image_size, progress=progress, lists=lists, settings=settings)
    check_convertible(folder, spec)
    return tree(spec.classes).source("folder", shape=spec.shape, progress=progress, lists=lists, settings=settings)


def check_convertible(shown: Path, spec: DatasetSpec) -> None:
    """Raise ``UserError`` if image files cannot be converted to the data of a federation."""
    if not spec.classes:
        raise wrong_classes(f"the federation does not name its classes, so {shown} cannot be used; use an .npz.")
    if spec.shape[0] not in (1, 3):
        raise wrong_shape(f"image files have 1 or 3 channels, but the federation has {spec.shape[0]}; use an .npz.")


def _tree(folder: Path, table: Path | None, columns: Columns, names: Sequence[str]) -> Tree:
    if table:
        train, test = csv_labels.read(folder, table, columns)
    elif _is_split(folder):
        train, test = (_samples(folder, part) for part in ("train/", "test/"))
    else:
        train, test = _samples(folder, ""), []
    if not test:
        train, test = hold_out(train)
        if not test:
            remedy = "add images, or sort them into train/ and test/"
            raise wrong_layout(f"{folder} has too few images to hold out a fifth of each class for testing; {remedy}.")
    labels, test_labels = ({sample.label for sample in samples} for samples in (train, test))
    domains, test_domains = ({sample.domain for sample in samples} - {""} for samples in (train, test))
    if not names and len(labels) < 2:
        raise wrong_classes(f"{folder} has only class {printable(train[0].label)!r}; at least two are needed.")
    if names and (unknown := sorted((labels | test_labels) - set(names))):
        what = f"{folder} has images of class {printable(unknown[0])!r}"
        raise wrong_classes(f"{what}, which the federation does not have; expected {', '.join(names)}.")
    for what, untrained in (("class", test_labels - labels), ("domain", test_domains - domains)):
        if untrained:
            which = f"{what} {printable(min(untrained))!r}"
            raise wrong_classes(f"{folder} has test images of {which}, but no training images; add some.")
    if bool(domains) != bool(test_domains):
        raise wrong_layout(f"{folder} has domain folders in only one of train/ and test/; use one layout for both.")
    clients = {sample.client for sample in train} - {""}
    order = in_order if table else sorted
    return Tree(folder, train, test, names or order(labels), order(domains), order(clients))


def _is_split(folder: Path) -> bool:
    """Return whether there are train/ and test/. A class may have one of these names: then it holds images directly."""
    folders = {item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")}
    splits = {name for name in folders if name.lower() in _SPLITS and not _holds_images(folder / name)}
    if not splits:
        return False
    if not {"train", "test"} <= splits:
        what = f"{folder} has the split {min(splits)}/, but not both train/ and test/"
        raise wrong_layout(f"{what}; rename or add one, or move the class folders directly into {folder}.")
    if beside := ", ".join(map(printable, sorted(folders - {"train", "test"}))):
        log.warning("ignoring %s in %s, because it is outside of train/ and test/", beside, folder)
    return True


def _holds_images(folder: Path) -> bool:
    return any(item.suffix.lower() in ENDINGS and item.is_file() for item in folder.iterdir())


def _samples(folder: Path, part: str) -> list[Sample]:
    files = image_files(folder / part)
    if not files:
        endings = " ".join(sorted(ending[1:] for ending in ENDINGS))
        raise wrong_layout(f"{folder / part} holds no images in class folders; expected files that end in {endings}.")
    by_depth = {len(file.split("/")): file for file in reversed(files)}
    if len(by_depth) > 1 or not {2, 3} & by_depth.keys():
        shallow, deep = printable(by_depth[min(by_depth)]), printable(by_depth[max(by_depth)])
        example = f"{shallow} and {deep}" if len(by_depth) > 1 else shallow
        raise wrong_layout(f"{folder / part} has {example}; expected only CLASS/IMAGE or only DOMAIN/CLASS/IMAGE.")
    return [Sample(part + file, file.split("/")[-2], "/".join(file.split("/")[:-2])) for file in files]
