"""How long runs take on a device, from those that were made on it."""

from collections.abc import Iterable

from fedaf.sweep.cells import Cell, FinishedRun
from fedaf.sweep.identity import Identity

_Kind = frozenset[tuple[str, str]]


class Pace:
    """Seconds of a run, estimated from runs on the same device with the same settings except seed, or except seed and
    split."""

    def __init__(self, device: str, runs: Iterable[FinishedRun] = ()) -> None:
        self._device = device
        self._seconds: dict[_Kind, list[float]] = {}
        self._estimates: dict[_Kind, float] = {}
        for run in runs:
            self.learn(run)

    def learn(self, run: FinishedRun) -> None:
        """Take a finished run into account, if it was made on this device."""
        if run.figures["device"] == self._device:
            for kind in _kinds(run.identity):
                self._seconds.setdefault(kind, []).append(float(run.figures["seconds"]))

    def assume(self, cell: Cell, seconds: float) -> None:
        """Use an estimate until a similar run is finished."""
        self._estimates[_kinds(cell.identity)[1]] = seconds

    def seconds(self, cell: Cell) -> float | None:
        """Return the mean of the most similar runs, or ``None`` if nothing is known."""
        without_seed, without_split = _kinds(cell.identity)
        found = self._seconds.get(without_seed) or self._seconds.get(without_split)
        return sum(found) / len(found) if found else self._estimates.get(without_split)


def _kinds(settings: Identity) -> tuple[_Kind, _Kind]:
    without_seed = {item for item in settings.items() if item[0] != "run.seed"}
    return frozenset(without_seed), frozenset(item for item in without_seed if not item[0].startswith("partition."))
