"""The methods by name; a method of one's own is named ``module:Class``."""

import importlib
import inspect
import sys
from pathlib import Path

from fedaf.naming import nearest
from fedaf.protocol import Method, UserError

_BUILT_IN = {
    "fedaf": "fedaf.methods.fedaf:FedAF",
    "feddm": "fedaf.methods.feddm:FedDM",
    "fedavg": "fedaf.methods.fedavg:FedAvg",
    "fedprox": "fedaf.methods.fedprox:FedProx",
    "fedbn": "fedaf.methods.fedbn:FedBN",
    "feddyn": "fedaf.methods.feddyn:FedDyn",
}
METHODS = tuple(_BUILT_IN)


def find(name: str) -> type[Method]:
    """The class of a method, or ``UserError`` with the nearest name."""
    path = _BUILT_IN.get(name, name)
    module_name, colon, class_name = path.partition(":")
    if not colon:
        raise UserError(
            f"unknown method {name!r}{nearest(name, METHODS)}; allowed is one of {', '.join(METHODS)}, or module:Class."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # as `python -m` does: an installed command does not look where it is called
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError, TypeError, SyntaxError) as error:
        raise UserError(f"method {name!r} cannot be loaded ({error}); it must be module:Class.") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"method {name!r} is not a class derived from fedaf.protocol.Method.")
    if inspect.isabstract(found):
        raise UserError(f"method {name!r} lacks {', '.join(sorted(found.__abstractmethods__))}.")
    return found
