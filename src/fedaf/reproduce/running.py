"""Running the paper's cells, one after another: what is done is skipped, what was cut short goes on, what fails does
not stop the rest."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaf import config as configuration
from fedaf.common.files import write_atomically
from fedaf.config import Config
from fedaf.data import catalog
from fedaf.engine import resolve_device
from fedaf.errors import FedafError, InUse
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import CONFIG, RESULT, read_metrics
from fedaf.reporting.tables import duration
from fedaf.reproduce.archive import Archive, Identity, Run, config_of, identity, is_done, publish, read_run
from fedaf.reproduce.cells import Cell
from fedaf.runs import estimate, experiment
from fedaf.runs.experiment import Experiment

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Places:
    """Where finished runs go, where runs are made, where data lie, and what computes."""

    results: Path
    work: Path
    data_dir: Path
    device: str = "auto"

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        return {"data": {"dir": str(self.data_dir)}, "run": {"device": self.device}}


class _Spent(Exception):
    """The time that was given is over; the last round is checkpointed."""


class Budget:
    """Time from now on, in seconds of ``clock``; without minutes there is no end of it."""

    def __init__(self, minutes: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = float("inf") if minutes is None else clock() + 60 * minutes

    @property
    def spent(self) -> bool:
        return self._clock() >= self._end


class _Watched(Observer):
    """Tells another observer everything, and ends the run after the round in which the budget is spent."""

    def __init__(self, inner: Observer, budget: Budget) -> None:
        self._inner, self._budget, self._rounds = inner, budget, 0

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._rounds = rounds
        self._inner.started(title=title, rounds=rounds, first_round=first_round, phases=phases, device=device)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self._inner.round_ended(metrics)
        if self._budget.spent and metrics["round"] < self._rounds:
            raise _Spent

    def round_started(self, round: int) -> None:
        self._inner.round_started(round)

    def phase_started(self, name: str, clients: int) -> None:
        self._inner.phase_started(name, clients)

    def progressed(self, who: str, done: int, total: int) -> None:
        self._inner.progressed(who, done, total)

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self._inner.client_failed(round, phase, client, reason)

    def ended(self) -> None:
        self._inner.ended()


class Pace:
    """How long runs take on a device, from those that were made on it: by their settings but for the seed, and by their
    settings but for seed and split."""

    def __init__(self, device: str, runs: Iterable[Run] = ()) -> None:
        self._device = device
        self._seconds: dict[_Kind, list[float]] = {}
        self._guesses: dict[_Kind, float] = {}
        for run in runs:
            self.learn(run)

    def learn(self, run: Run) -> None:
        if run.figures["device"] == self._device:
            for kind in _kinds(run.identity):
                self._seconds.setdefault(kind, []).append(float(run.figures["seconds"]))

    def assume(self, cell: Cell, seconds: float) -> None:
        """An estimate, for as long as nothing is known."""
        self._guesses[_kinds(identity(config_of(cell)))[1]] = seconds

    def seconds(self, cell: Cell) -> float | None:
        """The mean of the runs that are most alike, if there are any."""
        same, alike = _kinds(identity(config_of(cell)))
        found = self._seconds.get(same) or self._seconds.get(alike)
        return sum(found) / len(found) if found else self._guesses.get(alike)


_Kind = frozenset[tuple[str, str]]


def _kinds(settings: Identity) -> tuple[_Kind, _Kind]:
    same = {(name, value) for name, value in settings.items() if name != "run.seed"}
    return frozenset(same), frozenset((name, value) for name, value in same if not name.startswith("partition."))


@dataclass(frozen=True)
class Audience:
    """Who is told: ``say`` gets a line for what begins, ends or fails, an ``observer`` is made for each run, and
    ``prepare`` may show how far the reading of data is."""

    say: Callable[[str], None]
    observer: Callable[[], Observer] = Observer
    prepare: Callable[[Config], Experiment] = experiment.prepare


@dataclass
class Tally:
    """What came of the cells of one call."""

    finished: list[Cell] = field(default_factory=list)
    failed: dict[Cell, str] = field(default_factory=dict)
    busy: list[Cell] = field(default_factory=list)
    left: list[Cell] = field(default_factory=list)


class Reproduction:
    """The cells that are wanted, those among them that are done, and how long the rest will take."""

    def __init__(self, cells: Sequence[Cell], places: Places) -> None:
        self.cells, self.places = list(cells), places
        self.archive = Archive(places.results)
        self.done = {cell for cell in self.cells if self.archive.find(cell) is not None}
        self.open = [cell for cell in self.cells if cell not in self.done]
        self.pace = Pace(experiment.device_name(resolve_device(places.device)), self.archive.runs)
        self._missing = {name for name in {cell.dataset for cell in cells} if not self._is_here(name)}

    def _is_here(self, dataset: str) -> bool:
        return dataset == "digits" or catalog.locate(dataset, self.places.data_dir) is not None

    def rounds_done(self, cell: Cell) -> int:
        """Of a run that was begun."""
        return len(read_metrics(self.places.work / cell.directory))

    def has_data(self, cell: Cell) -> bool:
        return cell.dataset not in self._missing

    def seconds_left(self, cell: Cell) -> float | None:
        seconds, rounds = self.pace.seconds(cell), config_of(cell).run.rounds
        return None if seconds is None else seconds * (1 - min(self.rounds_done(cell), rounds) / rounds)

    def time_left(self, cells: Sequence[Cell]) -> str:
        """Of these cells, in words."""
        each = [self.seconds_left(cell) for cell in cells]
        known = [seconds for seconds in each if seconds is not None]
        unknown = f"{len(each) - len(known)} of them of unknown length" if len(known) < len(each) else ""
        about = f"about {duration(sum(known))}" if known else ""
        return ", ".join(part for part in (f"{len(cells)} left", about, unknown) if part)

    @property
    def without_data(self) -> list[Cell]:
        """The open cells whose data are not here."""
        return [cell for cell in self.open if not self.has_data(cell)]

    def run(self, budget: Budget, audience: Audience) -> Tally:
        """Run what is open, the first first, until all is done or the budget is spent."""
        tally = Tally(left=[cell for cell in self.open if self.has_data(cell)])
        total, say = len(tally.left), audience.say
        while tally.left and not budget.spent:
            cell = tally.left[0]
            place = f"{total - len(tally.left) + 1}/{total} {cell.directory}"
            try:
                run = self._finish(cell, budget, audience, f"{place} ({self.time_left(tally.left)})")
            except _Spent:
                break
            except InUse:
                tally.busy.append(cell)
                say(f"{cell.directory} is at work in another process")
            except Exception as error:  # whatever it is, the other cells can do without this one
                log.debug("%s failed", cell.directory, exc_info=True)
                reason = str(error) if isinstance(error, FedafError) else f"{type(error).__name__}: {error}"
                tally.failed[cell] = " ".join(reason.split())
                say(f"{cell.directory} failed: {tally.failed[cell]}")
            else:
                self.pace.learn(run)
                tally.finished.append(cell)
                best, seconds = run.figures["best_accuracy"], duration(run.figures["seconds"])
                say(f"{cell.directory}: best {best:.2f} %, {seconds}")
            tally.left.pop(0)
        return tally

    def _finish(self, cell: Cell, budget: Budget, audience: Audience, announcement: str) -> Run:
        """Bring one cell into the archive."""
        if is_done(self.places.results, cell):
            return read_run(self.places.results / cell.directory)
        folder = self.places.work / cell.directory
        _set_aside_if_other(folder, cell)
        if not (folder / RESULT).is_file():
            begun = self.rounds_done(cell)
            audience.say(f"{announcement}, from round {begun + 1}" if begun else announcement)
            prepared = self._prepare(cell, folder, audience)
            if self.pace.seconds(cell) is None and (guess := estimate.seconds(prepared)) is not None:
                self.pace.assume(cell, guess)
                audience.say(f"it will take roughly {duration(guess)}")
            experiment.continue_run(prepared, folder, _Watched(audience.observer(), budget))
        return read_run(publish(folder, self.places.results, cell))

    def _prepare(self, cell: Cell, folder: Path, audience: Audience) -> Experiment:
        if (folder / CONFIG).is_file():
            return experiment.reopen(folder, moved=self.places.settings)
        config = configuration.build(configuration.merge(cell.settings, self.places.settings))
        prepared = audience.prepare(config)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / CONFIG, prepared.config.to_toml())
        return prepared


def _set_aside_if_other(folder: Path, cell: Cell) -> None:
    """A run that was begun under this name with other settings, by an older version perhaps, keeps its rounds."""
    if not (folder / CONFIG).is_file():
        return
    found = configuration.build(configuration.read_toml(folder / CONFIG))
    if identity(found) == identity(config_of(cell)):
        return
    number = 1
    while (aside := folder.with_name(f"{folder.name}-other-{number}")).exists():
        number += 1
    folder.rename(aside)
    log.warning("%s was begun with other settings; it is now %s", folder, aside)
