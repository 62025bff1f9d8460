"""The folder of finished runs that a report is made from. Runs are recognised by their settings, not by their names."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedaf.common.files import write_atomically
from fedaf.engine.registry import ENGINES
from fedaf.errors import UserError
from fedaf.federation.metrics import CONFUSION
from fedaf.federation.run_directory import CONFIG, COUNTS, METRICS, PARTITION, RESULT, read_metrics
from fedaf.methods.registry import METHODS
from fedaf.reporting.figures import read_result
from fedaf.reproduce.cells import Cell
from fedaf.runs.assembly import config_of_run
from fedaf.sweep.identity import Identity, differences, identity

_IGNORED = "it is ignored, and its cell counts as open"

_Key = frozenset[tuple[str, str]]


@dataclass(frozen=True, order=True)
class Conditions:
    """What changes the numbers of a run besides its settings. Runs under different conditions are never averaged."""

    engine: str
    precision: str
    method_version: int

    def __str__(self) -> str:
        return f"{self.engine}, {self.precision}, version {self.method_version}"


#: Of runs that do not say what computed them: they cannot be compared with others.
NOT_RECORDED = Conditions("unknown", "unknown", 0)


@dataclass(frozen=True)
class Run:
    """A finished run in the archive. ``counts`` are samples per class by client, if they were kept."""

    path: Path
    identity: Identity
    conditions: Conditions
    figures: Mapping[str, Any]
    counts: Mapping[str, Sequence[int]] | None

    @property
    def is_current(self) -> bool:
        """Whether the method still gives these numbers."""
        return self.conditions.method_version == METHODS.find(self.figures["method"]).version

    def differences(self, cell: Cell) -> list[str]:
        """Describe every setting that is not that of the cell."""
        return differences(self.identity, cell.identity)

    def same_split(self, cell: Cell) -> bool:
        """Return whether its clients hold the same samples as those of the cell."""
        wanted, prefixes = cell.identity, ("data.", "partition.", "run.seed")
        return all(self.identity.get(name) == wanted[name] for name in wanted if name.startswith(prefixes))


def _key(settings: Identity) -> _Key:
    return frozenset(settings.items())


class Archive:
    """All runs below a folder, as they were when it was opened.

    ``damaged`` has a sentence for each directory that cannot be read. With ``only``, no more is read than the
    directories that may hold a run of this cell.
    """

    def __init__(self, folder: Path, *, only: Cell | None = None) -> None:
        self.folder = folder
        self.runs: list[Run] = []
        self.damaged: dict[Path, str] = {}
        self._counted: dict[_Key, dict[Conditions, Run]] = {}
        for file in sorted(folder.glob(f"{only.directory}*/{CONFIG}" if only else f"*/*/{CONFIG}")):
            if file.parent.name.startswith("."):
                continue  # left by a process that was killed while it moved a run here
            try:
                run = read_run(file.parent)
            except UserError as error:
                self.damaged[file.parent] = str(error)
                continue
            self.runs.append(run)
            if run.conditions != NOT_RECORDED:
                self._counted.setdefault(_key(run.identity), {}).setdefault(run.conditions, run)

    def all_of(self, cell: Cell) -> list[Run]:
        """Return the runs of a cell: one for each set of conditions, the first if a run was repeated."""
        return list(self._counted.get(_key(cell.identity), {}).values())

    def find(self, cell: Cell, *, engine: str = "auto", precision: str = "auto") -> Run | None:
        """Return a run of the cell by the current version of its method; ``auto`` accepts any engine or precision."""
        for run in self.all_of(cell):
            used = run.conditions
            if run.is_current and engine in ("auto", used.engine) and precision in ("auto", used.precision):
                return run
        return None

    def others(self, cells: Sequence[Cell]) -> Iterator[tuple[Run, str]]:
        """Yield the runs that belong to none of these cells, with the reason.

        The reason names the nearest cell and how the run differs from it, or the run that is used in its place.
        """
        known = {_key(cell.identity) for cell in cells}
        for run in self.runs:
            key = _key(run.identity)
            counted = self._counted.get(key, {}).get(run.conditions)
            if key not in known:
                yield run, _nearest(run, cells)
            elif counted is None:
                yield run, "its engine and precision are not recorded"
            elif counted is not run:
                yield run, f"the same as {counted.path.relative_to(self.folder)}, which is used"


def _nearest(run: Run, cells: Sequence[Cell]) -> str:
    alike = [cell for cell in cells if (cell.method, cell.dataset) == (run.figures["method"], run.figures["dataset"])]
    if not alike:
        return "no table has this data set with this method"
    near = min(alike, key=lambda cell: len(run.differences(cell)))
    return f"unlike {near.directory}, {', '.join(run.differences(near))}"


def publish(work: Path, folder: Path, cell: Cell) -> Path:
    """Move a finished run into the archive, atomically.

    Checkpoints and other large files are left behind, the metrics of each round lose their confusion matrix (that of
    the last and of the best round stay in the result), and the configuration forgets where the data are. The run
    replaces a damaged run of its cell; any other run keeps its place.

    Returns:
        The directory of the run in the archive.
    """
    config = config_of_run(work)
    config = replace(config, data=config.data.model_copy(update={"dir": "data"}))
    conditions = _conditions(read_result(work))
    target = _free(folder / cell.directory, cell, conditions)
    new, old = (target.with_name(f".{target.name}.{kind}") for kind in ("new", "old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(parents=True)
    write_atomically(new / CONFIG, config.to_toml())
    write_atomically(new / RESULT, (work / RESULT).read_bytes())
    rounds = [{name: value for name, value in line.items() if name != CONFUSION} for line in read_metrics(work)]
    write_atomically(new / METRICS, "".join(json.dumps(line) + "\n" for line in rounds))
    counts = json.loads((work / PARTITION).read_text())["counts"]
    by_client = [f" {json.dumps(client)}: {json.dumps(row)}" for client, row in counts.items()]
    write_atomically(new / COUNTS, "{\n" + ",\n".join(by_client) + "\n}\n")
    if target.exists():
        target.rename(old)
    new.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    shutil.rmtree(work)
    return target


def _free(path: Path, cell: Cell, conditions: Conditions) -> Path:
    """The first numbered path where publishing a run of ``cell`` loses nothing."""
    target, number = path, 2
    while target.exists() and not _may_replace(target, cell, conditions):
        target, number = path.with_name(f"{path.name}-{number}"), number + 1
    return target


def _may_replace(path: Path, cell: Cell, conditions: Conditions) -> bool:
    """Whether a directory holds the same run, or a damaged one with the same settings."""
    try:
        if identity(config_of_run(path)) != cell.identity:
            return False
    except UserError:
        return False
    try:
        return read_run(path).conditions == conditions
    except UserError:
        return True


def read_run(path: Path) -> Run:
    """Read one run of the archive.

    Raises:
        UserError: If the run is damaged or incomplete.
    """
    config = config_of_run(path)
    figures = read_result(path, advice=_IGNORED)
    if missing := sorted({"versions", "device", "model"} - figures.keys()):
        raise _damaged(path / RESULT, f"it has no {', '.join(missing)}")
    curve = figures["curve"]
    if not isinstance(curve, list) or len(curve) != config.run.rounds:
        raise _damaged(path / RESULT, f"it does not have {config.run.rounds} rounds")
    if (figures["method"], figures["seed"]) != (config.method_name, config.run.seed):
        raise _damaged(path / RESULT, f"it belongs to another run than the {CONFIG} beside it")
    return Run(path, identity(config), _conditions(figures), figures, _counts(path / COUNTS))


def _conditions(figures: Mapping[str, Any]) -> Conditions:
    """A run that was made before methods had versions is of version 1, if it records what computed it."""
    if "engine" not in figures or "precision" not in figures:
        return NOT_RECORDED
    engine = (ENGINES.aliases or {}).get(figures["engine"], figures["engine"])
    return Conditions(engine, figures["precision"], figures.get("method_version", 1))


def _counts(path: Path) -> dict[str, list[int]] | None:
    try:
        found: dict[str, list[int]] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    return found


def _damaged(path: Path, what: str) -> UserError:
    return UserError(f"{path} is damaged: {what}; {_IGNORED}.", code="FEDAF-RESULTS-DAMAGED")


def _sync(folder: Path) -> None:
    """Make a rename durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
