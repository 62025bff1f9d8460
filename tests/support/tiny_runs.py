"""Runs of a few seconds: every configuration that is built gets few rounds, steps, epochs and clients.

The code that runs is the real one; only the numbers in its configuration are smaller. ``tiny_site/sitecustomize.py``
does the same in the processes that a command starts.
"""

from collections.abc import Callable
from typing import Any

from fedaf.common.options import Options
from fedaf.config import configuration

_CAPS: dict[str, dict[str, int]] = {
    "model": {"width": 8},
    "partition": {"clients": 5},
    "privacy": {"networks": 4},
    "method": {
        "ipc": 5,
        "local_steps": 10,
        "real_batch": 16,
        "server_epochs": 1,
        "server_steps": 4,
        "local_epochs": 1,
    },
}


def _capped(table: Options, caps: dict[str, int]) -> Options:
    """A copy with smaller numbers; what counts as set by the user stays the same."""
    values = {name: getattr(table, name) for name in type(table).model_fields}
    for name, cap in caps.items():
        if isinstance(values.get(name), int) and values.get("epsilon", 0) is not None:  # [privacy] without it is off
            values[name] = min(values[name], cap)
    return type(table).model_construct(_fields_set=set(table.model_fields_set), **values)


def _rounds(rounds: int) -> int:
    """Three rounds at most, and more for runs that are extended than for others."""
    return rounds if rounds <= 3 else 2 if rounds <= 20 else 3


def smaller(config: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that builds the same configuration with smaller numbers."""

    def build(**tables: Any) -> Any:
        run = tables["run"]
        shown = {name: getattr(run, name) for name in type(run).model_fields} | {"rounds": _rounds(run.rounds)}
        tables["run"] = type(run).model_construct(_fields_set=set(run.model_fields_set), **shown)
        return config(**tables | {name: _capped(tables[name], caps) for name, caps in _CAPS.items()})

    return build


def install() -> None:
    """Make every run of this process small, for good."""
    configuration.Config = smaller(configuration.Config)  # type: ignore[assignment,misc]
