"""Observers: objects that follow the progress of a run."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

log = logging.getLogger(__name__)


class Observer:
    """Base class of observers. It ignores everything except failed clients, which it logs as warnings."""

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        """Called once before the first round.

        Args:
            title: Method and data set, for people.
            rounds: Number of the last round.
            first_round: The round that comes next; above 1 in a resumed run.
            phases: Exchanges with clients per round.
            device: Where the server computes.
        """

    def round_started(self, round: int) -> None:
        """Called at the start of each round."""

    def phase_started(self, name: str, clients: int) -> None:
        """Called at the start of each phase; ``clients`` is 0 for the server's own work."""

    def progressed(self, who: str, done: int, total: int) -> None:
        """Called during a phase with the client at work (or a label for several), and its steps."""

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        """Called for each client whose reply does not count; ``reason`` ends with the error's code if it has one."""
        log.warning("round %d: %s is out (%s: %s)", round, client, phase, reason)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        """Called after each round is checkpointed, with its line of ``metrics.jsonl``."""

    def ended(self) -> None:
        """Called once after the last round, or when the run is interrupted."""


EVENT_NAMES = [name for name in vars(Observer) if not name.startswith("_")]


class Observers(Observer):
    """Forwards every call to several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        for name in EVENT_NAMES:
            setattr(self, name, partial(self._forward, name))

    def _forward(self, name: str, *arguments: Any, **fields: Any) -> None:
        for observer in self._observers:
            getattr(observer, name)(*arguments, **fields)
