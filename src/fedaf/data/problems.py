"""The errors that several modules of this room raise, by code."""

from functools import partial

from fedaf.errors import UserError

damaged = partial(UserError, code="FEDAF-DATA-DAMAGED")
incomplete = partial(UserError, code="FEDAF-DATA-INCOMPLETE")
not_found = partial(UserError, code="FEDAF-DATA-NOT-FOUND")
wrong_classes = partial(UserError, code="FEDAF-DATA-CLASSES")
wrong_labels = partial(UserError, code="FEDAF-DATA-LABELS")
wrong_shape = partial(UserError, code="FEDAF-DATA-SHAPE")
