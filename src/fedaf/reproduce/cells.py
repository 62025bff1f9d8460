"""The building blocks of the paper's tables: cells, lines, sections.

A cell is one run. A cell that appears in several tables is run once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedaf import config as configuration
from fedaf.config import Config
from fedaf.data.registry import DATASETS, spec_of
from fedaf.methods.registry import METHODS
from fedaf.sweep.identity import Identity, identity

_NAMES = {
    "convnet": "ConvNet",
    "resnet18": "ResNet18",
    "fedaf-zero-steps": "control: mean images, no condensation",
    "fedaf-random-images": "control: random private images, unchanged",
    "fedaf-without-cdc": "FedAF without CDC",
    "fedaf-without-lgkm": "FedAF without LGKM",
}


def shown(name: str) -> str:
    """Return the display name of a data set, method, model or variant."""
    if name in DATASETS.names:
        return spec_of(name).title
    return METHODS.find(name).title if name in METHODS.names else _NAMES.get(name, name)


@dataclass(frozen=True)
class Cell:
    """One run, as differences from the paper's preset for its data set and method.

    Args:
        dataset: Name of the data set.
        alpha: Dirichlet concentration; ``None`` for a split by domain.
        variant: The method's name, followed by a word for its ``options``: ``fedaf-ipc10``.
        seed: Random seed.
        options: Settings of the table ``method``.
        model: Name of the model.
        rounds: Communication rounds; ``None`` for the preset's.
        more: Other settings, by their full names.
    """

    dataset: str
    alpha: float | None
    variant: str
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    model: str = "convnet"
    rounds: int | None = None
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def method(self) -> str:
        """The built-in method that the variant's name begins with."""
        return max((name for name in METHODS if f"{self.variant}-".startswith(f"{name}-")), key=len)

    @property
    def setting(self) -> str:
        """The data set and its split."""
        return self.dataset if self.alpha is None else f"{self.dataset}-alpha{self.alpha:g}"

    @property
    def kind(self) -> str:
        """Everything but the seed."""
        return f"{self.setting}/{self.variant}" + (f"-{self.model}" if self.model != "convnet" else "")

    @property
    def directory(self) -> str:
        """The directory of its run, below the folder of all runs."""
        return f"{self.kind}-seed{self.seed}"

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Its configuration as tables on top of the preset ``paper``."""
        tables: dict[str, dict[str, Any]] = {
            "run": {"seed": self.seed, **({} if self.rounds is None else {"rounds": self.rounds})},
            "data": {"name": self.dataset},
            "partition": {"kind": "domain"} if self.alpha is None else {"kind": "dirichlet", "alpha": self.alpha},
            "model": {"name": self.model},
            "method": {"name": self.method, **dict(self.options)},
        }
        for path, value in self.more:
            table, _, key = path.partition(".")
            tables.setdefault(table, {})[key] = list(value) if isinstance(value, tuple) else value
        return tables

    @property
    def config(self) -> Config:
        """Its complete configuration."""
        return config_of(self)

    @property
    def identity(self) -> Identity:
        """The settings that change its numbers."""
        return identity_of(self)


@lru_cache(maxsize=4096)
def config_of(cell: Cell) -> Config:
    """Return the complete configuration of a cell."""
    return configuration.build(cell.settings, preset="paper")


@lru_cache(maxsize=4096)
def identity_of(cell: Cell) -> Identity:
    """Return the settings of a cell that change its numbers."""
    return identity(config_of(cell))


@dataclass(frozen=True)
class Line:
    """A row of a table: one cell per seed, and the paper's mean and standard deviation."""

    label: str
    cells: tuple[Cell, ...]
    paper: tuple[float, float | None] | None = None
    paper_by_domain: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Section:
    """Rows that are compared with each other. ``name`` names its figures; ``within`` limits it to the first rounds."""

    name: str
    title: str
    lines: tuple[Line, ...]
    within: int | None = None


@dataclass(frozen=True)
class Table:
    """A table of the report. ``measure`` is ``accuracy``, ``domains``, ``upload`` or ``rounds``."""

    name: str
    title: str
    note: str
    sections: tuple[Section, ...]
    measure: str = "accuracy"

    @property
    def lines(self) -> list[tuple[Section, Line]]:
        return [(section, line) for section in self.sections for line in section.lines]

    @property
    def cells(self) -> list[Cell]:
        """The cells of all lines, without duplicates."""
        return list(dict.fromkeys(cell for _, line in self.lines for cell in line.cells))
