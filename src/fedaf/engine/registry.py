"""The engines by name."""

from typing import TYPE_CHECKING, Any

from fedaf.common.registry import Registry

if TYPE_CHECKING:
    from fedaf.engine.eager import EagerEngine


def _check(name: str, found: Any) -> "type[EagerEngine]":
    return found  # type: ignore[no-any-return]


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
