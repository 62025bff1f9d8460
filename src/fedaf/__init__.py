"""Aggregation-free federated learning: FedAF, the methods it is compared with, and the federation they run in.

``fedaf.run`` runs a federation and returns a ``fedaf.RunResult``; ``fedaf.resume`` continues a stopped run;
``fedaf.load`` returns the trained model of a run, a ``fedaf.TrainedModel``.

Example:
    >>> import fedaf
    >>> result = fedaf.run(dataset="digits", method="fedaf", alpha=0.1, rounds=3, out="runs/first")
    >>> result.best_accuracy
"""

from typing import TYPE_CHECKING, Any

from fedaf.common.version import __version__

__all__ = ["RunResult", "TrainedModel", "__version__", "load", "resume", "run"]

if TYPE_CHECKING:
    from fedaf.runs.experiment import RunResult, resume, run
    from fedaf.runs.trained import TrainedModel, load


def __getattr__(name: str) -> Any:
    """Import PyTorch on first use, not with the package."""
    if name in ("run", "resume", "RunResult"):
        from fedaf.runs import experiment

        return getattr(experiment, name)
    if name in ("load", "TrainedModel"):
        from fedaf.runs import trained

        return getattr(trained, name)
    raise AttributeError(f"module 'fedaf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
