"""What a run tells of itself while it goes on. The base class says nothing but which clients failed, to the log."""

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)


class Observer:
    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None: ...

    def round_started(self, round: int) -> None: ...

    def phase_started(self, name: str, clients: int) -> None: ...

    def progressed(self, who: str, done: int, total: int) -> None: ...

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        log.warning("round %d: %s is out (%s: %s)", round, client, phase, reason)

    def round_ended(self, metrics: Mapping[str, Any]) -> None: ...

    def ended(self) -> None: ...


class Observers(Observer):
    """Forward every event to several observers, in order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        for each in self._observers:
            each.started(title=title, rounds=rounds, first_round=first_round, phases=phases, device=device)

    def round_started(self, round: int) -> None:
        for each in self._observers:
            each.round_started(round)

    def phase_started(self, name: str, clients: int) -> None:
        for each in self._observers:
            each.phase_started(name, clients)

    def progressed(self, who: str, done: int, total: int) -> None:
        for each in self._observers:
            each.progressed(who, done, total)

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        for each in self._observers:
            each.client_failed(round, phase, client, reason)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        for each in self._observers:
            each.round_ended(metrics)

    def ended(self) -> None:
        for each in self._observers:
            each.ended()
