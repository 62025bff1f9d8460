"""Run the cells of the paper's tables: a sweep whose finished runs go to an archive, recognised by their settings."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaf import config as configuration
from fedaf.config import Config
from fedaf.data import catalog
from fedaf.engine import resolve_device
from fedaf.reproduce.archive import Archive, Run, publish, read_run
from fedaf.reproduce.cells import Cell
from fedaf.runs.assembly import config_of_run
from fedaf.runs.composition import device_name
from fedaf.sweep.identity import identity
from fedaf.sweep.pace import Pace
from fedaf.sweep.running import CellWork, Series


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


class Reproduction(Series[Cell]):
    """The cells of the paper's tables, and the archive of finished runs."""

    def __init__(self, cells: Sequence[Cell], places: Places) -> None:
        self.places, self.archive = places, Archive(places.results)
        computed = {"engine": places.engine, "precision": places.precision}
        done = [cell for cell in cells if self.archive.find(cell, **computed)]
        pace = Pace(device_name(resolve_device(places.device)), self.archive.runs)
        super().__init__(cells, done, ArchiveWork(places=places, device=places.device), pace)
        datasets = {cell.dataset for cell in cells} - {"digits"}  # which is part of scikit-learn
        self._missing = {name for name in datasets if catalog.locate(name, places.data_dir) is None}

    def is_ready(self, cell: Cell) -> bool:
        """Return whether the data set of a cell is here."""
        return cell.dataset not in self._missing

    def state(self, cell: Cell) -> str:
        return super().state(cell) if cell in self.done or self.is_ready(cell) else "no data"

    @property
    def without_data(self) -> list[Cell]:
        """The open cells whose data set is not here."""
        return [cell for cell in self.open if not self.is_ready(cell)]


@dataclass(frozen=True, kw_only=True)
class ArchiveWork(CellWork[Cell]):
    """Bring one cell into the archive: run it, or continue it, and publish its run."""

    places: Places

    def finished(self, cell: Cell) -> Run | None:
        archive = Archive(self.places.results, only=cell)
        return archive.find(cell, engine=self.places.engine, precision=self.places.precision)

    def folder(self, cell: Cell) -> Path:
        return self.places.work / cell.directory

    def keep(self, cell: Cell) -> Run:
        return read_run(publish(self.folder(cell), self.places.results, cell))

    @property
    def moved(self) -> dict[str, dict[str, Any]]:
        return self.places.settings

    def unlike(self, cell: Cell) -> str | None:
        found, computed = config_of_run(self.folder(cell)), (self.places.engine, self.places.precision)
        same = identity(found) == cell.identity and (found.run.engine, found.run.precision) == computed
        return None if same else "with other settings"

    def config(self, cell: Cell) -> Config:
        return configuration.build(configuration.merge(cell.settings, self.places.settings))
