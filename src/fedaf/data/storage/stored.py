"""A data set opened from a file in the form: checked, and with its images still in the file."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.data.entries import DatasetSpec, custom_spec
from fedaf.data.storage.form import Damaged, Npz
from fedaf.protocol import UserError

log = logging.getLogger(__name__)
_NAMED = 3


def read(
    name: str,
    path: Path,
    *,
    shown: Path,
    entry: DatasetSpec | None = None,
    image_size: int | None = None,
    max_unreadable: float = 1.0,
) -> DataSet:
    """Open the file at ``path`` as data set ``name``; complaints are about ``shown``, the file or folder of the
    user's that it was made from. ``Damaged`` is raised where the file itself is not whole."""
    with Npz(path) as file:
        unreadable = () if path == shown else _unreadable(file, shown, max_unreadable)
        images = {key: _images(file, key, shown) for key in ("x_train", "x_test")}
        arrays = {key: file.array(key) for key in ("y_train", "y_test")}
        arrays |= {key: file.array(key) for key in ("domain_train", "domain_test") if key in file}
        classes, domains = (_names(file, key, shown) for key in ("classes", "domains"))
    shape = _shape(name, images, shown, entry, image_size)
    train_labels, test_labels = (_numbers(shown, f"y_{part}", arrays, images) for part in ("train", "test"))
    num_classes = entry.num_classes if entry else len(classes) or _count(train_labels)
    _within(shown, "classes", "label", num_classes, y_train=train_labels, y_test=test_labels)
    if num_classes < 2:
        raise UserError(f"{shown} has images of one class only; at least two are needed.")
    if entry and entry.classes and not classes:
        classes = entry.classes
    if len(classes) != num_classes:
        if classes:
            raise UserError(f"{shown} names {len(classes)} classes, but {name} has {num_classes}.")
        classes = tuple(map(str, range(num_classes)))
    train_domains = test_domains = None
    if "domain_train" in arrays or "domain_test" in arrays:
        train_domains, test_domains = (_numbers(shown, f"domain_{part}", arrays, images) for part in ("train", "test"))
        domains = domains or tuple(map(str, range(_count(train_domains))))
        _within(shown, "domains", "domain", len(domains), domain_train=train_domains, domain_test=test_domains)
    known = entry or custom_spec(shape, classes)
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
    """Raise ``UserError`` for an array that cannot be images [N, H, W, C]."""
    if dtype != np.uint8 or len(shape) not in (3, 4) or 0 in shape:
        raise UserError(f"{key} in {shown} must be uint8 [N, H, W, C], not {dtype} {list(shape)}.")
    if len(shape) == 4 and shape[3] > 4 >= shape[1]:
        raise UserError(f"{key} in {shown} looks like [N, C, H, W], {list(shape)}; it must be [N, H, W, C].")


def check_size(name: str, shown: Path | str, shape: Sequence[int], image_size: int | None) -> None:
    """Raise ``UserError`` where a size is asked for that arrays do not have: only image files are resized."""
    if image_size is not None and tuple(shape[1:]) != (image_size, image_size):
        raise UserError(
            f"data.image_size is {image_size}, but {shown} holds images of {shape[1]}x{shape[2]}, "
            f"and only image files are resized; leave it out for {name}."
        )


def _images(file: Npz, key: str, shown: Path) -> Tensor:
    member = file.member(key)
    check_images(shown, key, member.dtype, member.shape)
    if not member.stored:
        raise Damaged(f"{key} is compressed")
    array = file.mapped(key)
    return torch.from_numpy(array if array.ndim == 4 else array[..., None]).permute(0, 3, 1, 2)


def _shape(
    name: str, images: dict[str, Tensor], shown: Path, entry: DatasetSpec | None, image_size: int | None
) -> tuple[int, int, int]:
    channels, height, width = images["x_train"].shape[1:]
    shape, test_shape = (channels, height, width), tuple(images["x_test"].shape[1:])
    if test_shape != shape:
        raise UserError(f"x_test in {shown} holds images of shape {test_shape}, but x_train {shape}.")
    check_size(name, shown, shape, image_size)
    if entry:
        expected = entry.shape if image_size is None or not entry.resized else (entry.shape[0], image_size, image_size)
        if shape != expected:
            raise UserError(f"{shown} holds images of shape {shape}, but {name} has {expected}.")
    return shape


def _numbers(shown: Path, key: str, arrays: dict[str, np.ndarray], images: dict[str, Tensor]) -> Tensor:
    """One whole number for each image: its label, or its domain."""
    kind, _, part = key.partition("_")
    count, found = len(images[f"x_{part}"]), arrays.get(key)
    if found is None or found.ndim != 1 or len(found) != count or found.dtype.kind not in "iu" or found.min() < 0:
        what = "label" if kind == "y" else "domain"
        raise UserError(f"{key} in {shown} must hold one {what} >= 0 for each of the {count} images.")
    return torch.from_numpy(found.astype(np.int64))


def _count(numbers: Tensor) -> int:
    """How many classes there are where no names are given; more than samples would be a mistake."""
    return min(len(numbers), int(numbers.max()) + 1)


def _within(shown: Path, what: str, one: str, count: int, **found: Tensor) -> None:
    for key, numbers in found.items():
        lowest, highest = int(numbers.min()), int(numbers.max())
        if lowest < 0 or highest >= count:
            wrong = lowest if lowest < 0 else highest
            raise UserError(f"{key} in {shown} has a {one} {wrong}, but the last of the {what} is {count - 1}.")


def _names(file: Npz, key: str, shown: Path) -> tuple[str, ...]:
    if key not in file:
        return ()
    names = file.array(key)
    if names.ndim != 1 or names.dtype.kind != "U" or len(set(names.tolist())) != len(names):
        raise UserError(f"{key} in {shown} must be a list of different names, not {names.dtype} {list(names.shape)}.")
    return tuple(names.tolist())


def _unreadable(file: Npz, shown: Path, limit: float) -> tuple[str, ...]:
    """Names of the files that were left out; too many of them are an error."""
    if "unreadable" not in file:  # it was not made of image files
        return ()
    names, reasons = (file.array(key).tolist() for key in ("unreadable", "reasons"))
    if not names:
        return ()
    total = int(file.array("files"))
    first = "; ".join(f"{name}: {reason}" for name, reason in zip(names[:_NAMED], reasons, strict=False))
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    share = len(names) / total
    if share > limit:
        raise UserError(
            f"{len(names)} of the {total} image files in {shown} ({share:.1%}) cannot be read, and data.max_unreadable "
            f"allows {limit:.1%}; mend or remove them, or raise it ({first}{more})."
        )
    log.warning(
        "%d of the %d image files in %s cannot be read, and are left out: %s%s", len(names), total, shown, first, more
    )
    return tuple(names)
