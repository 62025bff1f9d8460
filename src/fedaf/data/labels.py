"""Labels, domains and clients as they come: numbers or names, one for each image."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaf.common.naming import printable
from fedaf.data.problems import incomplete, wrong_classes, wrong_labels

log = logging.getLogger(__name__)
_LISTED = 5  # classes that a message names


def as_array(given: Any) -> np.ndarray:
    """Return labels, domains or clients as an array; names that pandas keeps as objects become text."""
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    named = array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat)
    return array.astype(np.str_) if named else array


def unique_names(what: str, given: Iterable[object]) -> tuple[str, ...]:
    """Return names as text.

    Raises:
        UserError: If a name is there twice; ``what`` says where.
    """
    names = tuple(map(str, given))
    if len(set(names)) != len(names):
        raise wrong_classes(f"{what} has a name twice: {', '.join(names[:8])}; use every name once.")
    return names


def one_per_image(where: str, values: np.ndarray, count: int) -> np.ndarray:
    """Return labels, domains or clients as [N], whole numbers from 0 or names.

    Args:
        where: What the values are, for messages: ``"y_train in FILE"``.
        values: [N] or [N, 1].
        count: Number of images.

    Raises:
        UserError: If there is not one whole number >= 0 or one name for each image.
    """
    found = f"{where} is {values.dtype} {list(values.shape)}"
    if values.ndim == 2 and values.shape[1] > 1 and len(values) == count:
        remedy = "if each row has a single 1, save labels.argmax(1)"
        raise wrong_labels(
            f"{found}; expected one label for each image, multi-label data are not supported ({remedy})."
        )
    if values.shape not in ((count,), (count, 1)):
        raise wrong_labels(f"{found}; expected one value for each of the {count} images.")
    values = values.reshape(count)
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind == "f":
        bad = np.flatnonzero(values % 1 != 0)
        row = int(bad[0]) if len(bad) else 0
        remedy = "expected whole numbers from 0" if len(bad) else "save whole numbers: labels.astype(int)"
        raise wrong_labels(f"{found}, with {values[row]} in row {row}; {remedy}, or names.")
    if values.dtype.kind not in "iub":
        raise wrong_labels(f"{found}; expected whole numbers from 0, or names.")
    if len(bad := np.flatnonzero((values < 0) | (values > np.iinfo(np.int64).max))):
        raise wrong_labels(f"{found}, with {values[bad[0]]} in row {bad[0]}; expected whole numbers from 0, or names.")
    return values.astype(np.int64)


def unified(
    given: Mapping[str, np.ndarray], names: Mapping[str, Sequence[str]]
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the labels of several sets such that equal labels mean the same class, and the names of all classes.

    Numbers stay if no two sets name their classes differently. Otherwise they become names.

    Args:
        given: What ``one_per_image`` returned for each set, by the same ``where``.
        names: The class names of each set in label order, by the same keys; empty if the set has none.

    Raises:
        UserError: If numbers must become names, but a set has no names, or too few.
    """
    everything = tuple(dict.fromkeys(name for each in names.values() for name in each))
    different = len({tuple(each) for each in names.values() if each}) > 1
    if not different and all(values.dtype.kind != "U" for values in given.values()):
        return dict(given), everything
    return {where: _named(where, values, names[where]) for where, values in given.items()}, everything


def _named(where: str, values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Replace the numbers of a set by the names of its classes."""
    if values.dtype.kind == "U":
        return values
    if not names:
        what = f"{where} are numbers without class names, but the classes of other sets have names"
        raise wrong_labels(f"{what}; give every set an attribute 'classes', or names as labels.")
    if len(bad := np.flatnonzero(values >= len(names))):
        found = f"{where} have {values[bad[0]]} in row {bad[0]}, but this set names {len(names)} classes"
        raise wrong_labels(f"{found}; expected 0 to {len(names) - 1}.")
    named: np.ndarray = np.array(names)[values]
    return named


def resolve(
    what: str, given: Mapping[str, np.ndarray], names: Sequence[str] = (), count: int | None = None
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return the numbers of labels, domains or clients, and the name of each number.

    Names become numbers in the order of ``names``, or in alphabetical order. Labels 1 to C become 0 to C - 1, unless
    ``count`` is given.

    Args:
        what: ``"label"``, ``"domain"`` or ``"client"``.
        given: What ``one_per_image`` returned, by the same ``where``; the training split first.
        names: The names in order, if they are known.
        count: How many there must be, if that is known. Then the data may have only some of them.

    Raises:
        UserError: If a number or name is not one of those that are expected.
    """
    if any(values.dtype.kind == "U" for values in given.values()):
        return _from_names(what, given, names)
    if what == "client" and not names:  # such as the numbers of patients: any numbers
        ids = np.unique(np.concatenate(list(given.values())))
        return [torch.from_numpy(np.searchsorted(ids, values)) for values in given.values()], tuple(map(str, ids))
    first, *_ = given.values()
    lowest, highest = (int(limit([limit(values) for values in given.values()])) for limit in (np.min, np.max))
    start = 0
    if what == "label" and lowest == 1 and count is None and (not names or highest == len(names)):
        start = 1
        log.warning("%s and the other labels are 1 to %d; they become 0 to %d", next(iter(given)), highest, highest - 1)
    # More classes than samples would be a mistake.
    expected = count or len(names) or min(len(first), int(first.max()) + 1 - start)
    for where, values in given.items():
        if len(bad := np.flatnonzero(values - start >= expected)):
            found = f"{where} has the {what} {values[bad[0]]} in row {bad[0]}"
            cause = "" if names or count else f", because no training image has a {what} above {start + expected - 1}"
            raise wrong_labels(f"{found}; expected {start} to {start + expected - 1}{cause}.")
    numbers = [torch.from_numpy(values - start) for values in given.values()]
    return numbers, tuple(names) or tuple(map(str, range(start, start + expected)))


def grouped(
    kind: str, arrays: Mapping[str, np.ndarray], names: Sequence[str], counts: Mapping[str, int], place: str = ""
) -> tuple[list[Tensor], tuple[str, ...]]:
    """Return the domain or client of each image of each split, and their names; nothing if there are none.

    Args:
        kind: ``"domain"`` or ``"client"``.
        arrays: The arrays that are there, such as ``domain_train``.
        names: The names in order, if they are known.
        counts: Number of images of each split that needs the array.
        place: Where the arrays are, for messages: ``" in FILE"``.

    Raises:
        UserError: If an array is missing or wrong.
    """
    keys = {f"{kind}_{part}": count for part, count in counts.items()}
    missing = [key for key in keys if key not in arrays]
    if missing and (names or len(missing) < len(keys)):
        has = f"{kind}s" if len(missing) == len(keys) else next(key for key in keys if key not in missing)
        remedy = f"add the {kind} of each image, numbers from 0 or names, or leave out {has}"
        raise incomplete(f"{has} is given{place} without {' and '.join(missing)}", remedy)
    if missing:
        return [], ()
    values = {f"{key}{place}": one_per_image(f"{key}{place}", arrays[key], count) for key, count in keys.items()}
    return resolve(kind, values, names)


def note_missing(shown: object, classes: Sequence[str], train: Tensor, test: Tensor) -> None:
    """Warn of classes without training images."""
    trained, tested = (torch.bincount(labels, minlength=len(classes)) > 0 for labels in (train, test))
    for which, consequence in (
        (tested & ~trained, "test images, but no training images; no model can learn them"),
        (~tested & ~trained, "no images"),
    ):
        if missing := [classes[number] for number in which.nonzero().flatten().tolist()]:
            more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
            log.warning("%s: the classes %s%s have %s", shown, ", ".join(missing[:_LISTED]), more, consequence)


def _from_names(
    what: str, given: Mapping[str, np.ndarray], names: Sequence[str]
) -> tuple[list[Tensor], tuple[str, ...]]:
    for where, values in given.items():
        if values.dtype.kind != "U":
            raise wrong_labels(f"{where} has numbers, but the other split has names; use one of them in both.")
        if len(empty := np.flatnonzero(values == "")):
            raise wrong_labels(f"{where} has an empty {what} in row {empty[0]}; name every {what}.")
    known = {
        name: number for number, name in enumerate(names or np.unique(np.concatenate(list(given.values()))).tolist())
    }
    for where, values in given.items():
        if unknown := {name for name in np.unique(values).tolist() if name not in known}:
            row = next(row for row, name in enumerate(values) if name in unknown)
            found = f"{where} has the {what} {printable(str(values[row]))!r} in row {row}"
            raise wrong_labels(f"{found}; expected one of {', '.join(known)}.")
    return [torch.tensor([known[name] for name in values.tolist()]) for values in given.values()], tuple(known)
