"""Aggregation-free federated learning: FedAF, the methods it is compared with, and the federation they run in.

========================  ==============================================================================
``fedaf.run``             run a federation and return a ``RunResult``
``fedaf.start``           the same, one round for each step of a loop
``fedaf.resume``          continue a stopped run
``fedaf.compare``         run several methods on the same splits and return a ``Comparison``
``fedaf.report``          write the report of finished runs, one HTML file
``fedaf.condense``        condense a data set of one owner and return a ``Condensation``
``fedaf.load``            the trained model of a run, a ``TrainedModel`` that predicts
``fedaf.RunResult``       figures, curve, trained model and metrics of a run
``fedaf.Observer``        base class of objects that follow a run
``fedaf.RunInfo``         what an observer learns about a run before its first round
``fedaf.StopRun``         raised by an observer to stop a run
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
    from fedaf.federation.observer import Observer, RunInfo, StopRun
    from fedaf.runs.api import StartedRun, compare, condense, resume, run, start
    from fedaf.runs.comparison import Comparison
    from fedaf.runs.condense import Condensation
    from fedaf.runs.model import TrainedModel
    from fedaf.runs.report import report
    from fedaf.runs.result import RunResult
    from fedaf.runs.trained import load

_HOMES = {
    "Comparison": "fedaf.runs.comparison",
    "Condensation": "fedaf.runs.condense",
    "Observer": "fedaf.federation.observer",
    "RunInfo": "fedaf.federation.observer",
    "RunResult": "fedaf.runs.result",
    "StartedRun": "fedaf.runs.api",
    "StopRun": "fedaf.federation.observer",
    "TrainedModel": "fedaf.runs.model",
    "compare": "fedaf.runs.api",
    "condense": "fedaf.runs.api",
    "load": "fedaf.runs.trained",
    "report": "fedaf.runs.report",
    "resume": "fedaf.runs.api",
    "run": "fedaf.runs.api",
    "start": "fedaf.runs.api",
}

__all__ = [
    "Comparison",
    "Condensation",
    "Observer",
    "RunInfo",
    "RunResult",
    "StartedRun",
    "StopRun",
    "TrainedModel",
    "__version__",
    "compare",
    "condense",
    "load",
    "report",
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
