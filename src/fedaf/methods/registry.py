"""Methods by name. A new built-in method is one file and one line here."""

import inspect
from typing import TYPE_CHECKING, Any

from fedaf.common.registry import Registry
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.protocol import Method


def _check(name: str, found: Any) -> "type[Method]":
    from fedaf.protocol import Method

    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UserError(f"method {name!r} is not a class derived from fedaf.protocol.Method.", code="FEDAF-METHOD-TYPE")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UserError(f"method {name!r} does not implement {missing}.", code="FEDAF-METHOD-TYPE")
    return found


METHODS: "Registry[type[Method]]" = Registry(
    "method",
    "fedaf.methods",
    {
        "fedaf": "fedaf.methods.fedaf:FedAF",
        "feddm": "fedaf.methods.feddm:FedDM",
        "fedavg": "fedaf.methods.fedavg:FedAvg",
        "fedprox": "fedaf.methods.fedprox:FedProx",
        "fedbn": "fedaf.methods.fedbn:FedBN",
        "moon": "fedaf.methods.moon:MOON",
        "feddyn": "fedaf.methods.feddyn:FedDyn",
        "fedgen": "fedaf.methods.fedgen:FedGen",
    },
    "module:Class",
    _check,
)
