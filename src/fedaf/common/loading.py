"""What users name as ``module:attribute``: their own methods and models."""

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

from fedaf.errors import UserError

log = logging.getLogger(__name__)


def load(kind: str, name: str, form: str) -> Any:
    """The object behind ``module:attribute``; modules in the current folder count. ``kind`` and ``form`` say in the
    ``UserError`` what cannot be loaded and how it must be named."""
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # as `python -m` does: an installed command does not look where it is called
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the module is the user's, and may raise anything
        log.debug("loading %s failed", name, exc_info=error)
        raise UserError(f"{kind} {name!r} cannot be loaded ({reason(error)}); it must be {form}.") from error


def reason(error: Exception) -> str:
    """What users' code raised, short and in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
