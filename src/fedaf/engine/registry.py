"""The engines by name."""

from typing import TYPE_CHECKING

from fedaf.common.registry import Registry, subclass_of

if TYPE_CHECKING:
    from fedaf.engine.eager import EagerEngine


ENGINES: "Registry[type[EagerEngine]]" = Registry(
    "engine",
    "fedaf.engines",
    {
        "eager": "fedaf.engine.eager:EagerEngine",
        "cuda-graphs": "fedaf.engine.cuda_graphs:CudaGraphEngine",
    },
    "module:Class",
    subclass_of("fedaf.engine.eager:EagerEngine", "FEDAF-ENGINE-TYPE"),
    aliases={"compiled": "cuda-graphs"},
)
