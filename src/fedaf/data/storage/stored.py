"""Opening and checking a file in the stored form; its images stay in the file."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.data.spec import DatasetSpec, custom_spec
from fedaf.data.storage.form import Damaged, Npz
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
        images = {key: _images(file, key, shown) for key in ("x_train", "x_test")}
        arrays = {key: file.array(key) for key in ("y_train", "y_test")}
        arrays |= {key: file.array(key) for key in ("domain_train", "domain_test") if key in file}
        classes, domains = (_names(file, key, shown) for key in ("classes", "domains"))
    shape = _shape(name, images, shown, spec, image_size)
    train_labels, test_labels = (_numbers(shown, f"y_{part}", arrays, images) for part in ("train", "test"))
    num_classes = spec.num_classes if spec else len(classes) or _count(train_labels)
    _within(shown, "classes", "label", num_classes, y_train=train_labels, y_test=test_labels)
    if num_classes < 2:
        raise UserError(f"{shown} has images of one class only; at least two are needed.", code="FEDAF-DATA-CLASSES")
    if spec and spec.classes and not classes:
        classes = spec.classes
    if len(classes) != num_classes:
        if classes:
            raise UserError(
                f"{shown} names {len(classes)} classes, but {name} has {num_classes}.", code="FEDAF-DATA-CLASSES"
            )
        classes = tuple(map(str, range(num_classes)))
    train_domains = test_domains = None
    if "domain_train" in arrays or "domain_test" in arrays:
        train_domains, test_domains = (_numbers(shown, f"domain_{part}", arrays, images) for part in ("train", "test"))
        domains = domains or tuple(map(str, range(_count(train_domains))))
        _within(shown, "domains", "domain", len(domains), domain_train=train_domains, domain_test=test_domains)
    known = spec or custom_spec(shape, classes)
    return DataSet(
        name,
        Split(images["x_train"], train_labels, train_domains),
        Split(images["x_test"], test_labels, test_domains),
        num_classes,
        mean=known.mean,
        std=known.std,
        classes=classes,
        domains=domains if train_domains is not None else (),
        unreadable=unreadable,
    )


def check_images(shown: Path, key: str, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """Raise ``UserError`` unless an array can be images [N, H, W, C]."""
    if dtype != np.uint8 or len(shape) not in (3, 4) or 0 in shape:
        raise UserError(
            f"{key} in {shown} is {dtype} {list(shape)}; expected uint8 [N, H, W, C].", code="FEDAF-DATA-SHAPE"
        )
    if len(shape) == 4 and shape[3] > 4 >= shape[1]:
        raise UserError(
            f"{key} in {shown} looks like [N, C, H, W], {list(shape)}; expected [N, H, W, C].", code="FEDAF-DATA-SHAPE"
        )


def check_size(name: str, shown: Path | str, shape: Sequence[int], image_size: int | None) -> None:
    """Raise ``UserError`` if arrays do not have the requested size: only image files are resized."""
    if image_size is not None and tuple(shape[1:]) != (image_size, image_size):
        raise UserError(
            f"data.image_size is {image_size}, but {shown} holds images of {shape[1]}x{shape[2]}, "
            f"and only image files are resized; leave it out for {name}.",
            code="FEDAF-DATA-IMAGE-SIZE",
        )


def _images(file: Npz, key: str, shown: Path) -> Tensor:
    member = file.member(key)
    check_images(shown, key, member.dtype, member.shape)
    if not member.stored:
        raise Damaged(f"{key} is compressed")
    array = file.mapped(key)
    return torch.from_numpy(array if array.ndim == 4 else array[..., None]).permute(0, 3, 1, 2)


def _shape(
    name: str, images: dict[str, Tensor], shown: Path, spec: DatasetSpec | None, image_size: int | None
) -> tuple[int, int, int]:
    channels, height, width = images["x_train"].shape[1:]
    shape, test_shape = (channels, height, width), tuple(images["x_test"].shape[1:])
    if test_shape != shape:
        raise UserError(
            f"x_test in {shown} holds images of shape {test_shape}, but x_train of shape {shape}.",
            code="FEDAF-DATA-SHAPE",
        )
    check_size(name, shown, shape, image_size)
    if spec:
        expected = spec.shape if image_size is None or not spec.resized else (spec.shape[0], image_size, image_size)
        if shape != expected:
            raise UserError(
                f"{shown} holds images of shape {shape}, but {name} has {expected}.", code="FEDAF-DATA-SHAPE"
            )
    return shape


def _numbers(shown: Path, key: str, arrays: dict[str, np.ndarray], images: dict[str, Tensor]) -> Tensor:
    """Return the label or domain of each image."""
    kind, _, part = key.partition("_")
    count, found = len(images[f"x_{part}"]), arrays.get(key)
    if found is None or found.ndim != 1 or len(found) != count or found.dtype.kind not in "iu" or found.min() < 0:
        what = "label" if kind == "y" else "domain"
        raise UserError(
            f"{key} in {shown} must hold one {what} >= 0 for each of the {count} images.", code="FEDAF-DATA-LABELS"
        )
    return torch.from_numpy(found.astype(np.int64))


def _count(numbers: Tensor) -> int:
    """Count the classes if no names are given; more classes than samples would be a mistake."""
    return min(len(numbers), int(numbers.max()) + 1)


def _within(shown: Path, what: str, one: str, count: int, **found: Tensor) -> None:
    for key, numbers in found.items():
        lowest, highest = int(numbers.min()), int(numbers.max())
        if lowest < 0 or highest >= count:
            wrong = lowest if lowest < 0 else highest
            raise UserError(
                f"{key} in {shown} has the {one} {wrong}, but the {what} are 0 to {count - 1}.",
                code="FEDAF-DATA-LABELS",
            )


def _names(file: Npz, key: str, shown: Path) -> tuple[str, ...]:
    if key not in file:
        return ()
    names = file.array(key)
    if names.ndim != 1 or names.dtype.kind != "U" or len(set(names.tolist())) != len(names):
        raise UserError(
            f"{key} in {shown} is {names.dtype} {list(names.shape)}; expected a list of different names.",
            code="FEDAF-DATA-CLASSES",
        )
    return tuple(names.tolist())


def _unreadable(file: Npz, shown: Path, limit: float) -> tuple[str, ...]:
    """Return the names of the unreadable files; raise ``UserError`` if there are too many."""
    if "unreadable" not in file:  # not converted from image files
        return ()
    names, reasons = (file.array(key).tolist() for key in ("unreadable", "reasons"))
    if not names:
        return ()
    total = int(file.array("files"))
    first = "; ".join(f"{name}: {reason}" for name, reason in zip(names[:_EXAMPLES], reasons, strict=False))
    more = f"; and {len(names) - _EXAMPLES} more" if len(names) > _EXAMPLES else ""
    share = len(names) / total
    if share > limit:
        raise UserError(
            f"{len(names)} of the {total} image files in {shown} ({share:.1%}) cannot be read, and data.max_unreadable "
            f"allows {limit:.1%}; repair or remove them, or raise the limit ({first}{more}).",
            code="FEDAF-DATA-UNREADABLE",
        )
    log.warning(
        "leaving out %d of the %d image files in %s, which cannot be read: %s%s", len(names), total, shown, first, more
    )
    return tuple(names)
