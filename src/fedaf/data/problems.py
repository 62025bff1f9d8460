"""The errors that several modules of this room raise, by code."""

from functools import partial

from fedaf.errors import UserError

not_found = partial(UserError, code="FEDAF-DATA-NOT-FOUND")
wrong_classes = partial(UserError, code="FEDAF-DATA-CLASSES")
wrong_labels = partial(UserError, code="FEDAF-DATA-LABELS")
wrong_shape = partial(UserError, code="FEDAF-DATA-SHAPE")


def damaged(what: str, remedy: str = "fetch it again") -> UserError:
    return UserError(f"{what}; {remedy}.", code="FEDAF-DATA-DAMAGED")


def incomplete(what: str, remedy: str = "fetch it again") -> UserError:
    return UserError(f"{what}; {remedy}.", code="FEDAF-DATA-INCOMPLETE")
