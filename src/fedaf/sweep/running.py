"""Run the cells of a grid, one after another or several at once.

Finished cells are skipped, interrupted ones are continued, and a cell that fails does not stop the others. What a grid
is made of, and where its runs are kept, is up to ``CellWork``: ``fedaf sweep`` and ``fedaf reproduce`` have their own.
"""

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from rich.box import SIMPLE
from rich.table import Column, Table

from fedaf.config import Config
from fedaf.engine import resolve_device
from fedaf.errors import FedafError, InUse, UserError
from fedaf.federation.observer import Observer, Observers
from fedaf.federation.run_directory import CONFIG, RESULT, RunDirectory, read_metrics
from fedaf.reporting.tables import duration
from fedaf.runs import estimate, experiment
from fedaf.runs.experiment import Experiment
from fedaf.sweep.budget import Budget, BudgetObserver, BudgetSpent
from fedaf.sweep.cells import Cell, FinishedRun
from fedaf.sweep.mps import shared_gpu
from fedaf.sweep.pace import Pace
from fedaf.sweep.workers import Report, run_in_workers

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Cell)
Say = Callable[[str], None]
Prepare = Callable[[Config], Experiment]


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
class Tally(Generic[C]):
    """The result of one call of ``Series.run``, by cell."""

    finished: list[C] = field(default_factory=list)
    failed: dict[C, str] = field(default_factory=dict)
    busy: list[C] = field(default_factory=list)
    left: list[C] = field(default_factory=list)

    @property
    def failures(self) -> list[str]:
        """A sentence for each cell that failed."""
        return [f"{cell.directory} failed: {reason}" for cell, reason in self.failed.items()]


@dataclass(frozen=True, kw_only=True)
class CellWork(ABC, Generic[C]):
    """Bring one cell to its end: run it, or continue it, and keep its run. It travels to worker processes.

    Args:
        device: What computes the runs, as ``run.device`` has it.
        budget: The run stops with ``BudgetSpent`` once it is used up.
        threads: CPU threads of a run whose configuration names none; ``None`` leaves PyTorch's choice.
    """

    device: str = "auto"
    budget: Budget = field(default_factory=Budget)
    threads: int | None = None

    @abstractmethod
    def finished(self, cell: C) -> FinishedRun | None:
        """Return the finished run of a cell, if there is one."""

    @abstractmethod
    def folder(self, cell: C) -> Path:
        """Return the directory of the unfinished run of a cell."""

    @abstractmethod
    def keep(self, cell: C) -> FinishedRun:
        """Put the run in ``folder`` where finished runs are, and return it."""

    @property
    def moved(self) -> Mapping[str, Any]:
        """Settings that replace those of a run that is continued: where data are, and what computes."""
        return {}

    def unlike(self, cell: C) -> str | None:
        """Say how the run in ``folder`` was begun, if it cannot be continued as a run of the cell."""
        return None

    def config(self, cell: C) -> Config:
        """Return the configuration to start the run of a cell with."""
        return cell.config

    def __call__(
        self, cell: C, say: Say, *, observer: Observer | None = None, prepare: Prepare = experiment.prepare
    ) -> FinishedRun:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if run := self.finished(cell):  # by another process
            return run
        folder = self.folder(cell)
        if (folder / CONFIG).is_file() and (how := self.unlike(cell)):
            _set_aside(folder, how)
        if not (folder / RESULT).is_file():
            begun = len(read_metrics(folder))
            say(f"from round {begun + 1}" if begun else "")
            observers = Observers(observer or Observer(), BudgetObserver(self.budget))
            try:
                prepared = self._prepare(cell, folder, prepare)
                if run := self.finished(cell):  # while the data were read
                    return run
                experiment.continue_run(prepared, folder, observers)
            except UserError as error:
                if error.code != "FEDAF-RUN-OTHER-VERSION":
                    raise
                _set_aside(folder, "by another version of its method")
                return self(cell, say, observer=observer, prepare=prepare)
        return self.keep(cell)

    def _prepare(self, cell: C, folder: Path, prepare: Prepare) -> Experiment:
        if (folder / CONFIG).is_file():
            return experiment.reopen(folder, moved=self.moved)
        prepared = prepare(self.config(cell))
        folder.mkdir(parents=True, exist_ok=True)
        with RunDirectory(folder) as directory:  # which another process may have begun meanwhile
            directory.write(CONFIG, prepared.config.to_toml())
        return prepared


class Series(Generic[C]):
    """The cells to run, those that are finished, and how long the others will take.

    Args:
        cells: All cells, in the order in which they are run.
        done: Those that are finished.
        work: Runs one of them.
        pace: How long runs take.
    """

    def __init__(self, cells: Sequence[C], done: Collection[C], work: CellWork[C], pace: Pace) -> None:
        self.cells, self.done = list(cells), set(done)
        self.open = [cell for cell in self.cells if cell not in self.done]
        self.work, self.pace = work, pace

    def is_ready(self, cell: C) -> bool:
        """Return whether an open cell can be run now."""
        return True

    def rounds_done(self, cell: C) -> int:
        """Return the finished rounds of an interrupted run."""
        return len(read_metrics(self.work.folder(cell)))

    def state(self, cell: C) -> str:
        """Describe how far a cell is: ``done``, ``round 2 of 20`` or ``open``."""
        if cell in self.done:
            return "done"
        rounds = self.rounds_done(cell)
        return f"round {rounds} of {cell.config.run.rounds}" if rounds else "open"

    def seconds_left(self, cell: C) -> float | None:
        """Estimate the remaining seconds of a cell, or return ``None`` if nothing is known."""
        seconds, rounds = self.pace.seconds(cell), cell.config.run.rounds
        return None if seconds is None else seconds * (1 - min(self.rounds_done(cell), rounds) / rounds)

    def time_left(self, cells: Sequence[C]) -> str:
        """Describe how much is left, for example ``"3 left, about 4 min"``."""
        each = [self.seconds_left(cell) for cell in cells]
        known = [seconds for seconds in each if seconds is not None]
        unknown = f"{len(each) - len(known)} of them of unknown length" if len(known) < len(each) else ""
        about = f"about {duration(sum(known))}" if known else ""
        return ", ".join(part for part in (f"{len(cells)} left", about, unknown) if part)

    def table(self) -> Table:
        """Show all cells, how far they are, and how long they will take."""
        left = Column("time left", justify="right", no_wrap=True)
        columns = Column("run", overflow="fold"), Column("state", no_wrap=True), left
        shown = Table(*columns, box=SIMPLE, padding=(0, 1, 0, 0))
        for cell in self.cells:
            seconds = None if cell in self.done else self.seconds_left(cell)
            shown.add_row(cell.directory, self.state(cell), "" if seconds is None else duration(seconds))
        return shown

    def closing(self, tally: Tally[C], *, where: str) -> str:
        """Return the closing sentence of a command: how many runs are done, and what is left.

        Args:
            tally: The result of ``run``.
            where: What is said of finished runs: ``"done"``.
        """
        done = f"{len(self.done) + len(tally.finished)} of {len(self.cells)} runs are {where}"
        failed = f"; {len(tally.failed)} failed" if tally.failed else ""
        busy = f"; {len(tally.busy)} are being run by another process" if tally.busy else ""
        rest = f"; {self.time_left(tally.left)}: the same command continues" if tally.left else ""
        return f"{done}{failed}{busy}{rest}."

    def run(self, budget: Budget, audience: Audience, *, jobs: int = 1) -> Tally[C]:
        """Run the open cells in order.

        Args:
            budget: No cell is started after it is spent, and a running one stops after its round.
            audience: Where output goes. With several jobs only ``say`` is used.
            jobs: How many cells run at once, each in a process of its own on the same device.
        """
        tally = Tally(left=[cell for cell in self.open if self.is_ready(cell)])
        cells = list(tally.left)

        def announce(cell: C, line: str) -> None:
            place = f"{cells.index(cell) + 1}/{len(cells)} {cell.directory} ({self.time_left(tally.left)})"
            audience.say(f"{place}, {line}" if line else place)

        parallel_on_gpu = jobs > 1 and resolve_device(self.work.device).type == "cuda"
        with shared_gpu() if parallel_on_gpu else nullcontext():
            if jobs == 1:
                reports = self._one_by_one(cells, replace(self.work, budget=budget), announce, audience)
            else:
                work = replace(self.work, budget=budget, threads=max(1, (os.cpu_count() or 1) // jobs))
                reports = run_in_workers(cells, work, workers=jobs, stop=lambda: budget.spent)
            for report in reports:
                if report.line is not None:
                    announce(report.task, report.line)
                elif not isinstance(report.error, BudgetSpent):
                    self._count(report, tally, audience.say)
        return tally

    def _one_by_one(
        self, cells: Sequence[C], work: CellWork[C], announce: Callable[[C, str], None], audience: Audience
    ) -> Iterator[Report[C, FinishedRun]]:
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

    def _count(self, report: Report[C, FinishedRun], tally: Tally[C], say: Say) -> None:
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


def _set_aside(folder: Path, how: str) -> None:
    """Rename an unfinished run, so that its rounds are not lost."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}-other-{number}")).exists():
        number += 1
    folder.rename(aside)
    log.warning("%s was begun %s; it is now %s", folder, how, aside)
