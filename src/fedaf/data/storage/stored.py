"""Opening and checking a file in the stored form; its images stay in the file."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.data.labels import grouped, note_missing, one_per_image, resolve
from fedaf.data.problems import table, wrong_classes, wrong_shape
from fedaf.data.spec import DatasetSpec, custom_spec
from fedaf.data.storage.form import CONDENSED_ONLY, OPTIONAL, OTHER_NAMES, Damaged, Member, Npz
from fedaf.protocol import UserError

log = logging.getLogger(__name__)
_EXAMPLES = 3  # unreadable files that a message names


def read(
    name: str,
    path: Path,
    *,
    shown: Path,
    spec: DatasetSpec | None = None,
    image_size: int | None = None,
    max_unreadable: float = 1.0,
) -> DataSet:
    """Open the file at ``path`` as data set ``name``. A file without a test split gives an empty one.

    Args:
        name: The name for messages and for the result.
        path: The file in the stored form.
        shown: The user's file or folder that it was converted from, for messages.
        spec: What the data must be.
        image_size: The side that the images must have.
        max_unreadable: Share of image files that may be unreadable.

    Raises:
        Damaged: If the file is not complete.
        UserError: If the data are not consistent or do not fit.
    """
    with Npz(path) as file:
        unreadable = () if path == shown else _unreadable(file, shown, max_unreadable)
        if path == shown:
            note_unused(file, shown)
        images = {part: _images(file, f"x_{part}", shown) for part in file.parts}
        given = {key: _names(file, key, shown) for key in ("classes", "domains", "clients")}
        known = given["classes"] or (spec.classes if spec else ())
        labels, classes = resolve("label", _labels(file, images, shown), known, spec.num_classes if spec else None)
        groups = {key: file.array(key) for key in OPTIONAL if "_" in key and key in file}
    counts, place = {part: len(found) for part, found in images.items()}, f" in {shown}"
    if "test" not in images:
        images["test"], labels = images["train"][:0], [*labels, labels[0][:0]]
    domains, domain_names = grouped("domain", groups, given["domains"], counts, place)
    clients, client_names = grouped("client", groups, given["clients"], {"train": counts["train"]}, place)
    train = Split(images["train"], labels[0], *(numbers[0] if numbers else None for numbers in (domains, clients)))
    test = Split(images["test"], labels[1], domains[1] if domains and "test" in counts else None)
    shape = _shape(name, train, test, shown, spec, image_size)
    num_classes = spec.num_classes if spec else len(classes)
    if num_classes < 2:
        raise wrong_classes(f"{shown} has images of one class only; at least two are needed.")
    if len(classes) != num_classes:
        raise wrong_classes(f"{shown} names {len(classes)} classes, but {name} has {num_classes}.")
    if spec is None:
        note_missing(shown, classes, train.labels, test.labels)
    constants = spec or custom_spec(shape, classes)
    return DataSet(
        name,
        train,
        test,
        num_classes,
        constants.mean,
        constants.std,
        classes,
        domain_names,
        unreadable,
        client_names,
    )


def note_unused(file: Npz, shown: Path) -> None:
    """Warn of arrays that are not read."""
    used = {*map(file.name_of, OTHER_NAMES), *OPTIONAL, *CONDENSED_ONLY}
    if unused := [name for name in file.names if name not in used]:
        log.warning("%s also has %s, which are not used", shown, ", ".join(unused))


def check_images(file: Npz, key: str, shown: Path) -> Member:
    """Return the header of an array; raise ``UserError`` unless it can be images [N, H, W, C]."""
    member = file.member(key)
    shape = member.shape
    what = f"{key} in {shown} is {member.dtype} {list(shape)}"
    if len(shape) == 2:
        raise table(what)
    if member.dtype != np.uint8 or len(shape) not in (3, 4) or 0 in shape:
        remedy = " (for values in [0, 1]: (255 * x).round().astype(np.uint8))" if member.dtype.kind == "f" else ""
        raise wrong_shape(f"{what}; expected uint8 [N, H, W, C]{remedy}.")
    if len(shape) == 4 and shape[3] > 4 >= shape[1]:
        raise wrong_shape(f"{what}, which looks like [N, C, H, W]; save x.transpose(0, 2, 3, 1), [N, H, W, C].")
    return member


def check_size(name: str, shown: Path | str, shape: Sequence[int], image_size: int | None) -> None:
    """Raise ``UserError`` if arrays do not have the requested size: only image files are resized."""
    if image_size is not None and tuple(shape[1:]) != (image_size, image_size):
        what = f"data.image_size is {image_size}, but {shown} holds arrays of {shape[1]}x{shape[2]}"
        raise UserError(f"{what}, which are not resized; leave it out for {name}.", code="FEDAF-DATA-IMAGE-SIZE")


def _images(file: Npz, array: str, shown: Path) -> Tensor:
    key = file.name_of(array)
    if not check_images(file, key, shown).stored:
        raise Damaged(f"{key} in {file.path} is compressed")
    found = file.mapped(key)
    return torch.from_numpy(found if found.ndim == 4 else found[..., None]).permute(0, 3, 1, 2)


def _labels(file: Npz, images: Mapping[str, Tensor], shown: Path) -> dict[str, np.ndarray]:
    """Return the labels of each split, by a description for messages."""
    keys = {part: file.name_of(f"y_{part}") for part in images}
    return {
        (where := f"{key} in {shown}"): one_per_image(where, file.array(key), len(images[part]))
        for part, key in keys.items()
    }


def _shape(
    name: str, train: Split, test: Split, shown: Path, spec: DatasetSpec | None, image_size: int | None
) -> tuple[int, int, int]:
    channels, height, width = train.images.shape[1:]
    shape, test_shape = (channels, height, width), tuple(test.images.shape[1:])
    if test_shape != shape:
        raise wrong_shape(f"x_test in {shown} holds images of shape {test_shape}, but x_train of shape {shape}.")
    check_size(name, shown, shape, image_size)
    if spec:
        expected = spec.shape if image_size is None or not spec.resized else (spec.shape[0], image_size, image_size)
        if shape != expected:
            raise wrong_shape(f"{shown} holds images of shape {shape}, but {name} has {expected}.")
    return shape


def _names(file: Npz, key: str, shown: Path) -> tuple[str, ...]:
    names = file.array(key) if key in file else np.empty(0, np.str_)
    if names.ndim != 1 or names.dtype.kind != "U" or len(set(names.tolist())) != len(names):
        raise wrong_classes(f"{key} in {shown} is {names.dtype} {list(names.shape)}; expected a list of unique names.")
    return tuple(names.tolist())


def _unreadable(file: Npz, shown: Path, limit: float) -> tuple[str, ...]:
    """Return the names of the unreadable files; raise ``UserError`` if there are too many."""
    names = file.array("unreadable").tolist() if "unreadable" in file else []  # only if converted from image files
    if not names:
        return ()
    reasons, total = file.array("reasons").tolist(), int(file.array("files"))
    examples = [f"{name}: {reason}" for name, reason in zip(names[:_EXAMPLES], reasons, strict=False)]
    more = [f"and {len(names) - _EXAMPLES} more"] if len(names) > _EXAMPLES else []
    share, listed = len(names) / total, "; ".join([*examples, *more])
    what = f"{len(names)} of the {total} image files in {shown} ({share:.1%}) cannot be read"
    if share > limit:
        remedy = f"repair or remove them, or raise data.max_unreadable, now {limit:.1%}"
        raise UserError(f"{what}; {remedy} ({listed}).", code="FEDAF-DATA-UNREADABLE")
    log.warning("%s and are left out: %s", what, listed)
    return tuple(names)
