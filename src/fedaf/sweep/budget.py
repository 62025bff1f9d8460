"""A time budget for a series of runs."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from fedaf.federation.observer import Observer, StopRun


class BudgetSpent(StopRun):
    """The time budget is used up; the last round is checkpointed."""


class Budget:
    """Minutes from now on.

    Args:
        minutes: The budget; ``None`` for no limit.
        clock: Returns the current time in seconds. The default counts from the start of the machine, so worker
            processes agree on it.
    """

    def __init__(self, minutes: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = float("inf") if minutes is None else clock() + 60 * minutes

    @property
    def spent(self) -> bool:
        return self._clock() >= self._end


class BudgetObserver(Observer):
    """Stop a run with ``BudgetSpent`` after the round in which the budget is used up, unless it is the last round."""

    def __init__(self, budget: Budget) -> None:
        self._budget, self._rounds = budget, 0

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._rounds = rounds

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        """Leave it to the other observers."""

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        if self._budget.spent and metrics["round"] < self._rounds:
            raise BudgetSpent
