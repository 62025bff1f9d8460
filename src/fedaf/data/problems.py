"""The errors that several modules of this room raise, by code."""

from functools import partial

from fedaf.errors import UserError

not_found = partial(UserError, code="FEDAF-DATA-NOT-FOUND")
wrong_classes = partial(UserError, code="FEDAF-DATA-CLASSES")
wrong_labels = partial(UserError, code="FEDAF-DATA-LABELS")
wrong_shape = partial(UserError, code="FEDAF-DATA-SHAPE")
wrong_layout = partial(UserError, code="FEDAF-DATA-LAYOUT")
wrong_column = partial(UserError, code="FEDAF-DATA-COLUMN")


def damaged(what: str, remedy: str = "fetch it again") -> UserError:
    return UserError(f"{what}; {remedy}.", code="FEDAF-DATA-DAMAGED")


def incomplete(what: str, remedy: str = "fetch it again") -> UserError:
    return UserError(f"{what}; {remedy}.", code="FEDAF-DATA-INCOMPLETE")


def table(what: str) -> UserError:
    """Return the error for a table of numbers; ``what`` says what was found."""
    needed = "for a folder of images and their labels in a CSV file, use folder:DIR with a labels.csv"
    return UserError(f"{what}: tables are not supported; fedaf is for images; {needed}.", code="FEDAF-DATA-TABLE")
