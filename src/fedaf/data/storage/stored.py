"""Opening and checking a file in the stored form; its images stay in the file."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.data.problems import wrong_classes, wrong_labels, wrong_shape
from fedaf.data.spec import DatasetSpec, custom_spec
from fedaf.data.storage.form import Damaged, Member, Npz
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
    """Open the file at ``path`` as data set ``name``.

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
        train, test = (_split(file, part, shown) for part in ("train", "test"))
        classes, domains = (_names(file, key, shown) for key in ("classes", "domains"))
    shape = _shape(name, train, test, shown, spec, image_size)
    num_classes = spec.num_classes if spec else len(classes) or _count(train.labels)
    _check_range(shown, "label", num_classes, y_train=train.labels, y_test=test.labels)
    if num_classes < 2:
        raise wrong_classes(f"{shown} has images of one class only; at least two are needed.")
    classes = classes or (spec.classes if spec else ()) or tuple(map(str, range(num_classes)))
    if len(classes) != num_classes:
        raise wrong_classes(f"{shown} names {len(classes)} classes, but {name} has {num_classes}.")
    if train.domains is None or test.domains is None:
        domains = ()
    else:
        domains = domains or tuple(map(str, range(_count(train.domains))))
        _check_range(shown, "domain", len(domains), domain_train=train.domains, domain_test=test.domains)
    known = spec or custom_spec(shape, classes)
    return DataSet(name, train, test, num_classes, known.mean, known.std, classes, domains, unreadable)


def check_images(file: Npz, key: str, shown: Path) -> Member:
    """Return the header of an array; raise ``UserError`` unless it can be images [N, H, W, C]."""
    member = file.member(key)
    shape = member.shape
    if member.dtype != np.uint8 or len(shape) not in (3, 4) or 0 in shape:
        raise wrong_shape(f"{key} in {shown} is {member.dtype} {list(shape)}; expected uint8 [N, H, W, C].")
    if len(shape) == 4 and shape[3] > 4 >= shape[1]:
        raise wrong_shape(f"{key} in {shown} looks like [N, C, H, W], {list(shape)}; expected [N, H, W, C].")
    return member


def check_size(name: str, shown: Path | str, shape: Sequence[int], image_size: int | None) -> None:
    """Raise ``UserError`` if arrays do not have the requested size: only image files are resized."""
    if image_size is not None and tuple(shape[1:]) != (image_size, image_size):
        what = f"data.image_size is {image_size}, but {shown} holds arrays of {shape[1]}x{shape[2]}"
        raise UserError(f"{what}, which are not resized; leave it out for {name}.", code="FEDAF-DATA-IMAGE-SIZE")


def numbers(file: Npz, key: str, count: int, shown: Path) -> Tensor:
    """Return the label or domain of each of ``count`` images."""
    absent = key.startswith("domain_") and key not in file
    found = np.empty(0) if absent else file.array(key)
    values = found.astype(np.int64) if found.dtype.kind in "iu" else np.empty(0, np.int64)
    if values.shape != (count,) or values.min() < 0:
        raise wrong_labels(f"{key} in {shown} must hold one number >= 0 for each of the {count} images.")
    return torch.from_numpy(values)


def _split(file: Npz, part: str, shown: Path) -> Split:
    key = f"x_{part}"
    if not check_images(file, key, shown).stored:
        raise Damaged(f"{key} in {file.path} is compressed")
    array = file.mapped(key)
    images = torch.from_numpy(array if array.ndim == 4 else array[..., None]).permute(0, 3, 1, 2)
    labels = numbers(file, f"y_{part}", len(images), shown)
    if "domain_train" not in file and "domain_test" not in file:
        return Split(images, labels)
    return Split(images, labels, numbers(file, f"domain_{part}", len(images), shown))


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


def _count(found: Tensor) -> int:
    """Count the classes if no names are given; more classes than samples would be a mistake."""
    return min(len(found), int(found.max()) + 1)


def _check_range(shown: Path, what: str, count: int, **found: Tensor) -> None:
    for key, values in found.items():
        if (highest := int(values.max())) >= count:
            raise wrong_labels(f"{key} in {shown} has the {what} {highest}; expected 0 to {count - 1}.")


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
