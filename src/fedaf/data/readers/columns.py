"""The columns of a table of images: which of them is the image, the label, the split, the client and the domain."""

import re
from collections.abc import Iterable, Sequence
from typing import Literal

from fedaf.common.naming import printable
from fedaf.data.problems import wrong_column
from fedaf.data.spec import Columns

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
    for rank in _USUAL[role]:
        found = [name for name in names if re.sub(r"\W+", "_", name.strip()).lower() in rank]
        if len(found) > 1:
            remedy = f"name the right one: --set {setting}={printable(found[0])}"
            if role == "split":
                remedy = "remove one of them"
            raise wrong_column(
                f"{where} has several columns that may be the {role}: {', '.join(map(printable, found))}; {remedy}."
            )
        if found:
            return found[0]
    return None


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


def in_order(names: Iterable[str]) -> list[str]:
    """Return names once each, sorted; by value if all are whole numbers."""
    unique = set(names)
    return sorted(unique, key=int) if all(re.fullmatch(r"\d{1,18}", name) for name in unique) else sorted(unique)
