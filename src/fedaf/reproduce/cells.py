"""A run of the paper's tables, and what tables are made of.

A cell is one run. The same cell may stand in several tables, and is run once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedaf.data.registry import DATASETS

_NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedbn": "FedBN",
    "moon": "MOON",
    "feddyn": "FedDyn",
    "fedgen": "FedGen",
    "feddm": "FedDM",
    "fedaf": "FedAF",
    "convnet": "ConvNet",
    "resnet18": "ResNet18",
    "fedaf-zero-steps": "control: mean images, no condensation",
    "fedaf-random-images": "control: random private images, as they are",
    "fedaf-without-cdc": "FedAF without CDC",
    "fedaf-without-lgkm": "FedAF without LGKM",
}


def shown(name: str) -> str:
    """A name as people write it."""
    return DATASETS.find(name).title if name in DATASETS.names else _NAMES.get(name, name)


@dataclass(frozen=True)
class Cell:
    """One run: what differs from the paper's preset for its data set and method. ``alpha`` is ``None`` for a split by
    domain; ``variant`` is the method with a word for its ``options`` (of the table ``method``)."""

    dataset: str
    alpha: float | None
    variant: str
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    model: str = "convnet"
    rounds: int | None = None
    more: tuple[tuple[str, Any], ...] = ()  # other settings, by their full names

    @property
    def method(self) -> str:
        return self.variant.partition("-")[0]

    @property
    def setting(self) -> str:
        """The data and their split."""
        return self.dataset if self.alpha is None else f"{self.dataset}-alpha{self.alpha:g}"

    @property
    def kind(self) -> str:
        """All but the seed."""
        return f"{self.setting}/{self.variant}" + (f"-{self.model}" if self.model != "convnet" else "")

    @property
    def directory(self) -> str:
        """Where its run lies, below the folder of all runs."""
        return f"{self.kind}-seed{self.seed}"

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Its configuration, as tables over the preset ``paper``."""
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


@dataclass(frozen=True)
class Line:
    """A row of a table: a cell for each seed, and what the paper prints, as mean and standard deviation."""

    label: str
    cells: tuple[Cell, ...]
    paper: tuple[float, float | None] | None = None
    paper_by_domain: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Section:
    """Rows that belong together. ``name`` names its pictures; ``within`` counts only that many rounds."""

    name: str
    title: str
    lines: tuple[Line, ...]
    within: int | None = None


@dataclass(frozen=True)
class Table:
    """``measure`` says what a figure is: accuracy, accuracy by domain, MiB of an upload, or rounds to a target."""

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
        """Each once."""
        return list(dict.fromkeys(cell for _, line in self.lines for cell in line.cells))
