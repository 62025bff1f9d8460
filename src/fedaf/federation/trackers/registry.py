"""Trackers by name. A new built-in tracker is one file, one line here, and an extra of the same name."""

import inspect
import logging
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fedaf.common.registry import Registry, reason, subclass_of
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.federation.observer import Observer

log = logging.getLogger(__name__)

TRACKERS: "Registry[type[Observer]]" = Registry(
    "tracker",
    "fedaf.observers",
    {
        "tensorboard": "fedaf.federation.trackers.tensorboard:TensorBoardTracker",
        "mlflow": "fedaf.federation.trackers.mlflow:MlflowTracker",
        "wandb": "fedaf.federation.trackers.wandb:WandbTracker",
    },
    "module:Class",
    subclass_of("fedaf.federation.observer:Observer", "FEDAF-TRACKER-TYPE"),
)

#: The modules that the extra of each built-in tracker installs.
_NEEDS = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy", "alembic"), "wandb": ("wandb",)}
#: Environment of the packages, unless the user sets it: no reports to their makers, and a server of MLflow that does
#: not answer is given up after seconds instead of minutes.
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "WANDB_ERROR_REPORTING": "false",
}


def find_trackers(names: Sequence[str]) -> "list[type[Observer]]":
    """Load the classes of trackers.

    Raises:
        UserError: A tracker is unknown, its package is not installed, or its class cannot be made without arguments.
    """
    found = []
    for variable, value in _ENVIRONMENT.items() if names else ():
        os.environ.setdefault(variable, value)  # has an effect only before the packages are imported
    for name in names:
        if missing := [module for module in _NEEDS.get(name, ()) if find_spec(module) is None]:
            what = f"the tracker {name} needs {' and '.join(missing)}, which is not installed"
            how = f"in the checkout of fedaf, run pip install '.[{name}]'"
            raise UserError(f"{what}; {how}.", code="FEDAF-TRACKER-NOT-INSTALLED")
        tracker = TRACKERS.find(name)
        try:
            inspect.signature(tracker).bind()
        except TypeError as error:
            what = f"the tracker {name!r} cannot be made without arguments ({error})"
            raise UserError(f"{what}; give its parameters defaults.", code="FEDAF-TRACKER-TYPE") from error
        found.append(tracker)
    return found


def make_trackers(names: Sequence[str]) -> "list[Observer]":
    """Make the trackers of a run. One whose constructor raises is left out with a warning."""
    made = []
    for name, tracker in zip(names, find_trackers(names), strict=True):
        try:
            made.append(tracker())
        except Exception as error:  # a custom class may raise anything
            log.warning("the tracker %s is dropped: its constructor raised %s", name, reason(error))
    return made


def places(names: Sequence[str], directory: str) -> list[str]:
    """Return where each built-in tracker writes, for people.

    Args:
        names: Names of trackers.
        directory: The run directory, or a word for several.
    """
    from fedaf.federation.trackers.tracker import Tracker

    classes = zip(names, find_trackers(names), strict=True)
    return [f"{name}: {tracker.place(directory)}" for name, tracker in classes if issubclass(tracker, Tracker)]
