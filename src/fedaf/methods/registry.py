"""The methods by name; a method of one's own is named ``module:Class``."""

import inspect

from fedaf.common.loading import load
from fedaf.common.naming import nearest
from fedaf.protocol import Method, UserError

_BUILT_IN = {
    "fedaf": "fedaf.methods.fedaf:FedAF",
    "feddm": "fedaf.methods.feddm:FedDM",
    "fedavg": "fedaf.methods.fedavg:FedAvg",
    "fedprox": "fedaf.methods.fedprox:FedProx",
    "fedbn": "fedaf.methods.fedbn:FedBN",
    "moon": "fedaf.methods.moon:MOON",
    "feddyn": "fedaf.methods.feddyn:FedDyn",
    "fedgen": "fedaf.methods.fedgen:FedGen",
}
METHODS = tuple(_BUILT_IN)


def find(name: str) -> type[Method]:
    """The class of a method, or ``UserError`` with the nearest name."""
    path = _BUILT_IN.get(name, name)
    if ":" not in path:
        raise UserError(
            f"unknown method {name!r}{nearest(name, METHODS)}; allowed is one of {', '.join(METHODS)}, or module:Class."
        )
    found = load("method", path, "module:Class")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"method {name!r} is not a class derived from fedaf.protocol.Method.")
    if inspect.isabstract(found):
        raise UserError(f"method {name!r} lacks {', '.join(sorted(found.__abstractmethods__))}.")
    return found
