"""The folder of finished runs that a report is made from: recognised by their settings, not by their names."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedaf import config as configuration
from fedaf.common.files import write_atomically
from fedaf.config import Config
from fedaf.errors import UserError
from fedaf.federation.run_directory import CONFIG, METRICS, PARTITION, RESULT
from fedaf.reporting.figures import read_result
from fedaf.reproduce.cells import Cell

COUNTS = "counts.json"

# Where and how a run is computed, and what has no effect on its numbers.
_NO_MATTER = {
    *("run.device", "run.engine", "run.precision", "run.threads", "run.memory_budget_mib", "run.keep_checkpoints"),
    *("data.dir", "data.max_unreadable", "partition.max_redraws"),
}
_OF_THE_SPLIT = {
    "dirichlet": {"kind", "clients", "alpha", "min_size"},
    "domain": {"kind"},
    "iid": {"kind", "clients"},
    "shards": {"kind", "clients", "shards_per_client"},
}

_OPEN = "it does not count, and what it was is to be run again"

Identity = Mapping[str, str]


def identity(config: Config) -> Identity:
    """The settings that make a run what it is, by their full names."""
    idle = set(_NO_MATTER)
    if told := _OF_THE_SPLIT.get(config.partition.kind):
        idle |= {f"partition.{name}" for name in type(config.partition).model_fields if name not in told}
    settings = {name: value for name, value, _ in configuration.describe(config) if name not in idle}
    return {**settings, "method.name": config.method_name}


@lru_cache(maxsize=4096)
def config_of(cell: Cell) -> Config:
    """The complete configuration of a cell."""
    return configuration.build(cell.settings, preset="paper")


@dataclass(frozen=True)
class Run:
    """A finished run in the archive; ``counts`` are samples of each class by client, where they were kept."""

    path: Path
    identity: Identity
    figures: Mapping[str, Any]
    counts: Mapping[str, Sequence[int]] | None

    def differs(self, cell: Cell) -> list[str]:
        """Where its settings are not those of a cell, in words."""
        wanted = identity(config_of(cell))
        names = sorted(name for name in {*wanted, *self.identity} if wanted.get(name) != self.identity.get(name))
        return [f"{name} is {self.identity.get(name, 'unset')}, not {wanted.get(name, 'unset')}" for name in names]

    def same_split(self, cell: Cell) -> bool:
        """Whether its clients hold what those of a cell hold."""
        wanted = identity(config_of(cell))
        names = [name for name in wanted if name.startswith(("data.", "partition.")) or name == "run.seed"]
        return all(self.identity.get(name) == wanted[name] for name in names)


class Archive:
    """All runs below a folder, as they were when it was opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[Run] = []
        self.damaged: dict[Path, str] = {}
        for file in sorted(folder.glob(f"*/*/{CONFIG}")):
            if file.parent.name.startswith("."):
                continue  # half-way into the archive when something was killed
            try:
                self.runs.append(read_run(file.parent))
            except UserError as error:
                self.damaged[file.parent] = str(error)
        self._by_identity = {_key(run.identity): run for run in reversed(self.runs)}

    def find(self, cell: Cell) -> Run | None:
        """The run of a cell."""
        return self._by_identity.get(_key_of(cell))

    def of(self, cells: Iterable[Cell]) -> list[Run]:
        """The runs there are of these cells."""
        return [run for run in map(self.find, cells) if run is not None]

    def others(self, cells: Iterable[Cell]) -> Iterator[tuple[Run, str]]:
        """The runs that stand for none of these cells, each with the reason: the nearest cell's directory and how it
        differs, or the run that was taken in its place."""
        cells = list(cells)
        known = set(map(_key_of, cells))
        for run in self.runs:
            if _key(run.identity) not in known:
                yield run, _nearest(run, cells)
            elif (taken := self._by_identity[_key(run.identity)]) is not run:
                yield run, f"the same as {taken.path.relative_to(self.folder)}, which is taken"


def _nearest(run: Run, cells: Sequence[Cell]) -> str:
    alike = [cell for cell in cells if (cell.method, cell.dataset) == (run.figures["method"], run.figures["dataset"])]
    if not alike:
        return "no table has this data set with this method"
    near = min(alike, key=lambda cell: len(run.differs(cell)))
    return f"unlike {near.directory}, {', '.join(run.differs(near))}"


def is_done(folder: Path, cell: Cell) -> bool:
    """Whether the run of a cell has come to where it belongs since the archive was opened."""
    try:
        return _key(read_run(folder / cell.directory).identity) == _key_of(cell)
    except UserError:
        return False


def publish(work: Path, folder: Path, cell: Cell) -> Path:
    """Move a finished run into the archive, all at once. What is large or told by the rest stays behind; the
    configuration forgets where the data lay. A damaged run of this cell makes room, another one keeps its place."""
    config = configuration.build(configuration.read_toml(work / CONFIG))
    config = changed(config, data=config.data.model_copy(update={"dir": "data"}))
    read_result(work)
    target = _free(folder / cell.directory, cell)
    new, old = (target.with_name(f".{target.name}.{kind}") for kind in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(parents=True)
    write_atomically(new / CONFIG, config.to_toml())
    for name in (METRICS, RESULT):
        write_atomically(new / name, (work / name).read_bytes())
    counts = json.loads((work / PARTITION).read_text())["counts"]
    write_atomically(new / COUNTS, _counts_text(counts))
    if target.exists():
        target.rename(old)
    new.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(work)
    return target


def _free(path: Path, cell: Cell) -> Path:
    """A path where nothing is lost: free, or held by a damaged run of the same cell, or by another attempt at it."""
    target, number = path, 2
    while target.exists() and not _is_of(target, cell):
        target, number = path.with_name(f"{path.name}-{number}"), number + 1
    return target


def _is_of(path: Path, cell: Cell) -> bool:
    """Whether a run has the settings of a cell, whatever came of it."""
    try:
        return _key(identity(configuration.build(configuration.read_toml(path / CONFIG)))) == _key_of(cell)
    except UserError:
        return False


def read_run(path: Path) -> Run:
    """One run of the archive; ``UserError`` where it is damaged."""
    config = configuration.build(configuration.read_toml(path / CONFIG))
    figures = read_result(path, advice=_OPEN)
    damaged = f"{path / RESULT} is damaged"
    if missing := sorted({"versions", "device", "model"} - figures.keys()):
        raise UserError(f"{damaged}: it has no {', '.join(missing)}; {_OPEN}.")
    curve = figures["curve"]
    if not isinstance(curve, list) or len(curve) != config.run.rounds:
        raise UserError(f"{damaged}: it does not have {config.run.rounds} rounds; {_OPEN}.")
    if (figures["method"], figures["seed"]) != (config.method_name, config.run.seed):
        raise UserError(f"{damaged}: it is of another run than the {CONFIG} beside it; {_OPEN}.")
    return Run(path, identity(config), figures, _counts(path / COUNTS))


def _counts(path: Path) -> dict[str, list[int]] | None:
    try:
        found: dict[str, list[int]] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); {_OPEN}.") from error
    return found


def _counts_text(counts: Mapping[str, Sequence[int]]) -> str:
    """A line for each client."""
    lines = ",\n".join(f" {json.dumps(client)}: {json.dumps(row)}" for client, row in counts.items())
    return f"{{\n{lines}\n}}\n"


def _key(settings: Identity) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(settings.items()))


@lru_cache(maxsize=4096)
def _key_of(cell: Cell) -> tuple[tuple[str, str], ...]:
    return _key(identity(config_of(cell)))


def _sync(folder: Path) -> None:
    """A renamed folder stays renamed, even when the power goes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
