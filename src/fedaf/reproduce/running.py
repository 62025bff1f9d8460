"""Run the cells of the paper's tables, one after another or several at once.

Finished cells are skipped, interrupted ones are continued, and a cell that fails does not stop the others.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedaf import config as configuration
from fedaf.common.files import write_atomically
from fedaf.config import Config
from fedaf.data import catalog
from fedaf.engine import resolve_device
from fedaf.errors import FedafError, InUse, UserError
from fedaf.federation.observer import Observer, Observers
from fedaf.federation.run_directory import CONFIG, RESULT, read_metrics
from fedaf.reporting.tables import duration
from fedaf.reproduce.archive import Archive, Run, config_of, identity, identity_of, publish, read_config, read_run
from fedaf.reproduce.cells import Cell
from fedaf.reproduce.pace import Pace
from fedaf.runs import estimate, experiment
from fedaf.runs.composition import device_name
from fedaf.runs.experiment import Experiment
from fedaf.sweep.budget import Budget, BudgetObserver, BudgetSpent
from fedaf.sweep.mps import shared_gpu
from fedaf.sweep.workers import Report, run_in_workers

log = logging.getLogger(__name__)

Say = Callable[[str], None]
Prepare = Callable[[Config], Experiment]


@dataclass(frozen=True)
class Places:
    """Where finished runs and unfinished ones lie, where the data are, and what computes."""

    results: Path
    work: Path
    data_dir: Path
    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings that are the same for all cells."""
        run = {"device": self.device, "engine": self.engine, "precision": self.precision}
        return {"data": {"dir": str(self.data_dir)}, "run": run}


@dataclass(frozen=True)
class Audience:
    """Where output goes.

    Args:
        say: Takes a line of text when a cell begins, ends or fails.
        observer: Makes the observer of a run.
        prepare: Opens the data of a run, and may show its progress.
    """

    say: Say
    observer: Callable[[], Observer] = Observer
    prepare: Prepare = experiment.prepare


@dataclass
class Tally:
    """The result of one call of ``Reproduction.run``, by cell."""

    finished: list[Cell] = field(default_factory=list)
    failed: dict[Cell, str] = field(default_factory=dict)
    busy: list[Cell] = field(default_factory=list)
    left: list[Cell] = field(default_factory=list)


class Reproduction:
    """The cells to run, those that are finished, and how long the others will take."""

    def __init__(self, cells: Sequence[Cell], places: Places) -> None:
        self.cells, self.places = list(cells), places
        self.archive = Archive(places.results)
        computed = {"engine": places.engine, "precision": places.precision}
        self.done = {cell for cell in self.cells if self.archive.find(cell, **computed)}
        self.open = [cell for cell in self.cells if cell not in self.done]
        self.pace = Pace(device_name(resolve_device(places.device)), self.archive.runs)
        datasets = {cell.dataset for cell in cells} - {"digits"}  # which is part of scikit-learn
        self._missing = {name for name in datasets if catalog.locate(name, places.data_dir) is None}

    def rounds_done(self, cell: Cell) -> int:
        """Return the finished rounds of an interrupted run."""
        return len(read_metrics(self.places.work / cell.directory))

    def has_data(self, cell: Cell) -> bool:
        return cell.dataset not in self._missing

    @property
    def without_data(self) -> list[Cell]:
        """The open cells whose data set is not here."""
        return [cell for cell in self.open if not self.has_data(cell)]

    def seconds_left(self, cell: Cell) -> float | None:
        """Estimate the remaining seconds of a cell, or return ``None`` if nothing is known."""
        seconds, rounds = self.pace.seconds(cell), config_of(cell).run.rounds
        return None if seconds is None else seconds * (1 - min(self.rounds_done(cell), rounds) / rounds)

    def time_left(self, cells: Sequence[Cell]) -> str:
        """Describe how much is left, for example ``"3 left, about 4 min"``."""
        each = [self.seconds_left(cell) for cell in cells]
        known = [seconds for seconds in each if seconds is not None]
        unknown = f"{len(each) - len(known)} of them of unknown length" if len(known) < len(each) else ""
        about = f"about {duration(sum(known))}" if known else ""
        return ", ".join(part for part in (f"{len(cells)} left", about, unknown) if part)

    def run(self, budget: Budget, audience: Audience, *, jobs: int = 1) -> Tally:
        """Run the open cells in order.

        Args:
            budget: No cell is started after it is spent, and a running one stops after its round.
            audience: Where output goes. With several jobs only ``say`` is used.
            jobs: How many cells run at once, each in a process of its own on the same device.
        """
        tally = Tally(left=[cell for cell in self.open if self.has_data(cell)])
        cells = list(tally.left)

        def announce(cell: Cell, line: str) -> None:
            place = f"{cells.index(cell) + 1}/{len(cells)} {cell.directory} ({self.time_left(tally.left)})"
            audience.say(f"{place}, {line}" if line else place)

        parallel_on_gpu = jobs > 1 and resolve_device(self.places.device).type == "cuda"
        with shared_gpu() if parallel_on_gpu else nullcontext():
            if jobs == 1:
                reports = self._one_by_one(cells, CellWork(self.places, budget), announce, audience)
            else:
                work = CellWork(self.places, budget, threads=max(1, (os.cpu_count() or 1) // jobs))
                reports = run_in_workers(cells, work, workers=jobs, stop=lambda: budget.spent)
            for report in reports:
                if report.line is not None:
                    announce(report.task, report.line)
                elif not isinstance(report.error, BudgetSpent):
                    self._count(report, tally, audience.say)
        return tally

    def _one_by_one(
        self, cells: Sequence[Cell], work: "CellWork", announce: Callable[[Cell, str], None], audience: Audience
    ) -> Iterator[Report[Cell, Run]]:
        def prepare(config: Config) -> Experiment:
            prepared = audience.prepare(config)
            if self.pace.seconds(cell) is None and (guess := estimate.seconds(prepared)) is not None:
                self.pace.assume(cell, guess)
                audience.say(f"it will take roughly {duration(guess)}")
            return prepared

        for cell in cells:
            if work.budget.spent:
                return
            try:
                run = work(cell, partial(announce, cell), observer=audience.observer(), prepare=prepare)
            except Exception as error:  # the other cells do not depend on this one
                yield Report(cell, error=error)
            else:
                yield Report(cell, result=run)

    def _count(self, report: Report[Cell, Run], tally: Tally, say: Say) -> None:
        cell, error, run = report.task, report.error, report.result
        tally.left.remove(cell)
        if run is not None:
            self.pace.learn(run)
            tally.finished.append(cell)
            say(f"{cell.directory}: best {run.figures['best_accuracy']:.2f} %, {duration(run.figures['seconds'])}")
        elif isinstance(error, InUse):
            tally.busy.append(cell)
            say(f"{cell.directory} is being run by another process")
        else:
            log.debug("%s failed", cell.directory, exc_info=error)
            reason = error.labelled if isinstance(error, FedafError) else f"{type(error).__name__}: {error}"
            tally.failed[cell] = " ".join(reason.split())
            say(f"{cell.directory} failed: {tally.failed[cell]}")


@dataclass(frozen=True)
class CellWork:
    """Bring one cell into the archive: run it, or continue it, and publish its run.

    Args:
        places: Where runs and data are.
        budget: The run stops with ``BudgetSpent`` once it is used up.
        threads: CPU threads of a run whose configuration names none; ``None`` leaves PyTorch's choice.
    """

    places: Places
    budget: Budget
    threads: int | None = None

    def __call__(
        self, cell: Cell, say: Say, *, observer: Observer | None = None, prepare: Prepare = experiment.prepare
    ) -> Run:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        places = self.places
        archive = Archive(places.results, only=cell)  # another process may have finished it meanwhile
        if run := archive.find(cell, engine=places.engine, precision=places.precision):
            return run
        folder = places.work / cell.directory
        _set_aside_if_other(folder, cell, places)
        if not (folder / RESULT).is_file():
            begun = len(read_metrics(folder))
            say(f"from round {begun + 1}" if begun else "")
            observers = Observers(observer or Observer(), BudgetObserver(self.budget))
            try:
                experiment.continue_run(self._prepare(cell, folder, prepare), folder, observers)
            except UserError as error:
                if error.code != "FEDAF-RUN-OTHER-VERSION":
                    raise
                _set_aside(folder, "by another version of its method")
                return self(cell, say, observer=observer, prepare=prepare)
        return read_run(publish(folder, places.results, cell))

    def _prepare(self, cell: Cell, folder: Path, prepare: Prepare) -> Experiment:
        if (folder / CONFIG).is_file():
            return experiment.reopen(folder, moved=self.places.settings)
        config = configuration.build(configuration.merge(cell.settings, self.places.settings))
        prepared = prepare(config)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / CONFIG, prepared.config.to_toml())
        return prepared


def _set_aside_if_other(folder: Path, cell: Cell, places: Places) -> None:
    """Rename an unfinished run of other settings, engine or precision, so that its rounds are not lost."""
    if not (folder / CONFIG).is_file():
        return
    found = read_config(folder)
    same = identity(found) == identity_of(cell)
    if not same or (found.run.engine, found.run.precision) != (places.engine, places.precision):
        _set_aside(folder, "with other settings")


def _set_aside(folder: Path, how: str) -> None:
    number = 1
    while (aside := folder.with_name(f"{folder.name}-other-{number}")).exists():
        number += 1
    folder.rename(aside)
    log.warning("%s was begun %s; it is now %s", folder, how, aside)
