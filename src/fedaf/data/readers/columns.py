"""The columns of a table of images: which of them is the image, the label, the split, the client and the domain."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Literal, TypeVar

from fedaf.common.naming import printable
from fedaf.data.problems import wrong_column, wrong_layout
from fedaf.data.spec import Columns

log = logging.getLogger(__name__)
_Sample = TypeVar("_Sample")
Role = Literal["image", "label", "split", "client", "domain"]

#: Usual names of columns in lower case, in two ranks: the second is used if no column has a name of the first.
_USUAL: dict[Role, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "image": (
        (
            *(
                "image",
                "image_id",
                "image_name",
                "image_path",
                "image_file",
                "image_index",
                "img",
                "img_name",
                "img_path",
            ),
            *("file", "filename", "file_name", "filepath", "file_path", "path"),
        ),
        ("id", "name", "id_code"),
    ),
    "label": (
        ("label", "labels", "class", "target", "category", "diagnosis", "dx", "class_name"),
        ("fine_label", "y", "breed", "species"),
    ),
    "split": (("split", "subset"), ()),
    "client": (("client", "client_id"), ()),
    "domain": (("domain",), ()),
}
_TRAIN = {"train", "training"}
_TEST = {"test", "testing"}
_VALIDATION = {"val", "valid", "validation", "dev", "eval"}


def find(role: Role, names: Sequence[str], given: Columns, where: object) -> str | None:
    """Return the column of a role: the one that the user names, else one with a usual name.

    Args:
        role: What the column is.
        names: All columns.
        given: The columns that the user names.
        where: The file, for messages.

    Raises:
        UserError: If the user's column does not exist, or several have usual names.
    """
    setting, listed = f"data.{role}_column", ", ".join(map(printable, names))
    if (wanted := getattr(given, role, None)) is not None:
        if wanted not in names:
            raise wrong_column(f"{setting} is {wanted!r}, but {where} has the columns {listed}; name one of them.")
        return str(wanted)
    found = splits(names, given) if role == "split" else _with_usual_names(role, names)
    if len(found) > 1:
        remedy = f"name the right one: --set {setting}={printable(found[0])}"
        if role == "split":
            remedy = "remove one of them"
        raise wrong_column(
            f"{where} has several columns that may be the {role}: {', '.join(map(printable, found))}; {remedy}."
        )
    return found[0] if found else None


def splits(names: Sequence[str], given: Columns) -> list[str]:
    """Return the columns that may be the split; not those that the user names for something else."""
    return _with_usual_names("split", [name for name in names if name not in astuple(given)])


def _with_usual_names(role: Role, names: Sequence[str]) -> list[str]:
    ranks = ([name for name in names if re.sub(r"\W+", "_", name.strip()).lower() in rank] for rank in _USUAL[role])
    return next((found for found in ranks if found), [])


def require(role: Role, names: Sequence[str], given: Columns, where: object) -> str:
    """Return the column of a role as ``find`` does.

    Raises:
        UserError: If there is none.
    """
    found = find(role, names, given, where)
    if found is None:
        what = f"{where} has no column with a usual name for the {role}, such as {', '.join(_USUAL[role][0][:3])}"
        listed = ", ".join(map(printable, names))
        raise wrong_column(f"{what}; its columns are {listed}. Name one of them: --set data.{role}_column=NAME.")
    return found


def part_of(name: str) -> Literal["train", "test", "validation"] | None:
    """Return the split that a name stands for."""
    lower = name.strip().lower()
    return "train" if lower in _TRAIN else "test" if lower in _TEST else "validation" if lower in _VALIDATION else None


def train_and_test(where: object, parts: Mapping[str, Sequence[_Sample]]) -> tuple[list[_Sample], list[_Sample]]:
    """Return the training samples and the test samples of a table with a split column; no test samples if all are for
    training.

    Args:
        where: The file or folder, for messages.
        parts: The samples by what ``part_of`` returns.

    Raises:
        UserError: If there are no training samples.
    """
    train, test, validation = (list(parts.get(part, ())) for part in ("train", "test", "validation"))
    if not train:
        raise wrong_layout(f"{where} has no rows of the split train; add some.")
    if validation and not test:
        log.warning("%s has no split test; its split validation is the test set", where)
        return train, validation
    if validation:
        log.warning("%s has %d images of the split validation, which are not used", where, len(validation))
    return train, test


def in_order(names: Iterable[str]) -> list[str]:
    """Return names once each, sorted; by value if all are whole numbers."""
    unique = set(names)
    return sorted(unique, key=int) if all(re.fullmatch(r"\d{1,18}", name) for name in unique) else sorted(unique)
