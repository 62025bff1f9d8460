"""The engines by name."""

from typing import TYPE_CHECKING, Any

from fedaf.common.registry import Registry
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.engine.eager import EagerEngine


def _check(name: str, found: Any) -> "type[EagerEngine]":
    from fedaf.engine.eager import EagerEngine

    if not (isinstance(found, type) and issubclass(found, EagerEngine)):
        raise UserError(f"engine {name!r} is {found!r}; expected a subclass of EagerEngine.", code="FEDAF-ENGINE-TYPE")
    return found


ENGINES: "Registry[type[EagerEngine]]" = Registry(
    "engine",
    "fedaf.engines",
    {
        "eager": "fedaf.engine.eager:EagerEngine",
        "cuda-graphs": "fedaf.engine.cuda_graphs:CudaGraphEngine",
    },
    "module:Class",
    _check,
    aliases={"compiled": "cuda-graphs"},
)
