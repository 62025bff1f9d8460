"""A sweep: the runs of a grid, each in a directory of its own below the folder of the sweep.

``sweep.json`` in the folder has the settings of every cell. The same command on the same folder continues the sweep.
"""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaf import config as configuration
from fedaf.common.files import write_atomically
from fedaf.common.naming import nearest
from fedaf.config import Config
from fedaf.engine import resolve_device
from fedaf.errors import InUse, UserError
from fedaf.federation.run_directory import CONFIG, RESULT, refuse_in_use
from fedaf.methods.registry import METHODS
from fedaf.reporting.figures import read_result
from fedaf.reporting.html import REPORT, write_report
from fedaf.runs.composition import device_name
from fedaf.sweep.findings import Findings
from fedaf.sweep.grid import Grid, GridCell
from fedaf.sweep.identity import Identity, differences
from fedaf.sweep.pace import Pace
from fedaf.sweep.running import CellWork, Prepare, Series

PLAN = "sweep.json"
_LOCK = ".lock"


@dataclass(frozen=True)
class GridRun:
    """The finished run of a cell."""

    identity: Identity
    figures: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class FolderWork(CellWork[GridCell]):
    """Bring one cell to its end in the folder of a sweep.

    Args:
        out: The folder.
        given: Settings of the command that say where data are and what computes, by table.
    """

    out: Path
    given: Mapping[str, Any] = field(default_factory=dict)

    def finished(self, cell: GridCell) -> GridRun | None:
        if not (self.folder(cell) / RESULT).is_file():
            return None
        figures = read_result(self.folder(cell))
        current = figures.get("method_version", 1) == METHODS.find(cell.config.method_name).version
        return GridRun(cell.identity, figures) if current else None

    def folder(self, cell: GridCell) -> Path:
        return self.out / cell.directory

    def keep(self, cell: GridCell) -> GridRun:
        return GridRun(cell.identity, read_result(self.folder(cell)))

    @property
    def moved(self) -> Mapping[str, Any]:
        return self.given

    def unlike(self, cell: GridCell) -> str | None:
        is_old = (self.folder(cell) / RESULT).is_file() and self.finished(cell) is None
        return "by another version of its method" if is_old else None

    def config(self, cell: GridCell) -> Config:
        return configuration.build(configuration.merge(tomllib.loads(cell.settings), self.given))


class Sweep(Series[GridCell]):
    """The cells of a grid and their runs in a folder.

    Args:
        grid: The grid.
        out: The folder, which is new or that of the same sweep.
        given: Settings of the command that say where data are and what computes, by table.

    Raises:
        UserError: The folder is in use, or holds the same cells with other settings.
    """

    def __init__(self, grid: Grid, out: Path, given: Mapping[str, Any]) -> None:
        self.grid, self.out = grid, out
        self._check_folder(_read_plan(out))
        device = given.get("run", {}).get("device") or grid.cells[0].config.run.device
        work = FolderWork(out=out, given=given, device=device)
        runs = {cell: run for cell in grid.cells if (run := work.finished(cell))}
        super().__init__(grid.cells, runs, work, Pace(name_of(device), runs.values()))

    def only(self, names: Sequence[str]) -> None:
        """Leave out all open cells but these.

        Raises:
            UserError: There is no such cell.
        """
        known = [cell.directory for cell in self.cells]
        if unknown := [name for name in names if name not in known]:
            what = f"--cell {unknown[0]} is not a run of this grid{nearest(unknown[0], known)}"
            raise UserError(f"{what}; --list shows all of them.", code="FEDAF-SWEEP-CELL")
        self.open = [cell for cell in self.open if cell.directory in names]

    def check(self, prepare: Prepare) -> None:
        """Prepare a run of every row of the table that was not begun, so that no mistake is found hours later.

        Raises:
            UserError: No run of a row can be prepared. If only some seeds fail, the others are run.
        """
        opened = set(self.open)
        for row in self.grid.rows.values():
            if not any((self.work.folder(cell) / CONFIG).is_file() for cell in row):
                self._check_row([cell for cell in row if cell in opened], prepare)

    def _check_row(self, row: Sequence[GridCell], prepare: Prepare) -> None:
        first: UserError | None = None
        for cell in row:
            try:
                prepare(self.work.config(cell))
            except UserError as error:
                first = first or UserError(f"{cell.directory}: {error}", code=error.code)
            else:
                return
        if first is not None:
            raise first

    def begin(self) -> None:
        """Create the folder and write the settings of all cells into it."""
        self.out.mkdir(parents=True, exist_ok=True)
        with locked(self.out):
            before = _read_plan(self.out)
            self._check_folder(before)
            after = {**before, **{cell.directory: cell.settings for cell in self.cells}}
            if after != before:
                write_atomically(self.out / PLAN, json.dumps({"cells": after}, indent=2) + "\n")

    def _check_folder(self, plan: Mapping[str, str]) -> None:
        if not plan:
            refuse_in_use(self.out)
        for cell in self.grid.cells:
            if cell.directory in plan and plan[cell.directory] != cell.settings:
                _refuse_other(self.out, GridCell(cell.directory, "", "", 0, plan[cell.directory], {}), cell)


def _refuse_other(out: Path, before: GridCell, cell: GridCell) -> None:
    """Refuse a cell whose settings are not those with which it was planned before."""
    changed = differences(before.identity, cell.identity)
    for name in ("engine", "precision"):
        found, wanted = (getattr(each.config.run, name) for each in (before, cell))
        changed += [f"run.{name} is {found}, not {wanted}"] if found != wanted else []
    if changed:
        what = f"{out} holds the run {cell.directory} with other settings, where {changed[0]}"
        raise UserError(f"{what}; choose another --out, or restore the grid file.", code="FEDAF-SWEEP-OTHER")


def _read_plan(out: Path) -> dict[str, str]:
    """Return the settings of all cells that were planned in a folder, as TOML; empty if there is no sweep."""
    try:
        found = json.loads((out / PLAN).read_text())["cells"]
        return {str(name): str(settings) for name, settings in found.items()}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        what = f"{out / PLAN} is damaged ({error}); restore it from a backup, or choose another --out."
        raise UserError(what, code="FEDAF-SWEEP-DAMAGED") from error


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Let no other process of the sweep write its files during the block.

    Args:
        folder: The folder of the sweep.
        wait: Whether to wait for another process.

    Raises:
        InUse: Another process is at it, and ``wait`` is false.
    """
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            what = f"another process is at work in {folder}; wait for it or choose another --out."
            raise InUse(what, code="FEDAF-RUN-LOCKED") from error
        yield
    finally:
        os.close(lock)


def name_of(device: str) -> str:
    """Return the name of a device as results have it; of one that is not here, what the setting says."""
    try:
        return device_name(resolve_device(device))
    except UserError:  # a login node of a cluster has no GPU
        return device


def write_outputs(sweep: Sweep) -> tuple[Findings, list[str]]:
    """Write what the finished runs of a sweep show into its folder: the one place for all files of a sweep.

    Returns:
        The findings, and the names of the files; none if no run is finished.
    """
    with locked(sweep.out):  # the last process to come here sees all runs that are finished
        figures = {cell: run.figures for cell in sweep.cells if (run := sweep.work.finished(cell))}
        found = Findings(sweep.grid, figures)
        if not figures:
            return found, []
        title, runs = f"Sweep of {sweep.out.name}", [sweep.work.folder(cell) for cell in figures]
        report = write_report(runs, sweep.out / REPORT, title=title)
        return found, [*found.write(sweep.out), report.name]
