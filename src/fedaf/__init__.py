"""Aggregation-free federated learning: FedAF, the methods it is compared with, and the federation they run in."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["RunResult", "__version__", "resume", "run"]

if TYPE_CHECKING:
    from fedaf.runs.experiment import RunResult, resume, run


def __getattr__(name: str) -> Any:
    """``fedaf.run`` without importing PyTorch before it is needed."""
    if name in ("run", "resume", "RunResult"):
        from fedaf.runs import experiment

        return getattr(experiment, name)
    raise AttributeError(f"module 'fedaf' has no attribute {name!r}")
