"""Aggregation-free federated learning: FedAF, the methods it is compared with, and the federation they run in.

========================  ==============================================================================
``fedaf.run``             run a federation and return a ``RunResult``
``fedaf.start``           the same, one round for each step of a loop
``fedaf.resume``          continue a stopped run
``fedaf.compare``         run several methods on the same splits and return a ``Comparison``
``fedaf.load``            the trained model of a run, a ``TrainedModel`` that predicts
``fedaf.RunResult``       figures, curve, trained model and metrics of a run
``fedaf.Observer``        base class of objects that follow a run
========================  ==============================================================================

Example:
    >>> import fedaf
    >>> result = fedaf.run(dataset="digits", method="fedaf", alpha=0.1, rounds=3, out="runs/first")
    >>> result.best_accuracy
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedaf.common.version import __version__

if TYPE_CHECKING:
    from fedaf.federation.observer import Observer
    from fedaf.runs.api import StartedRun, compare, resume, run, start
    from fedaf.runs.comparison import Comparison
    from fedaf.runs.model import TrainedModel
    from fedaf.runs.result import RunResult
    from fedaf.runs.trained import load

_HOMES = {
    "Comparison": "fedaf.runs.comparison",
    "Observer": "fedaf.federation.observer",
    "RunResult": "fedaf.runs.result",
    "StartedRun": "fedaf.runs.api",
    "TrainedModel": "fedaf.runs.model",
    "compare": "fedaf.runs.api",
    "load": "fedaf.runs.trained",
    "resume": "fedaf.runs.api",
    "run": "fedaf.runs.api",
    "start": "fedaf.runs.api",
}

__all__ = [
    "Comparison",
    "Observer",
    "RunResult",
    "StartedRun",
    "TrainedModel",
    "__version__",
    "compare",
    "load",
    "resume",
    "run",
    "start",
]


def __getattr__(name: str) -> Any:
    """Import PyTorch on first use, not with the package."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'fedaf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
