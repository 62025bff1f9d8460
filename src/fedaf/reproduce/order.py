"""Select and order the cells to run, the most valuable first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedaf.common.naming import nearest
from fedaf.errors import UserError
from fedaf.reproduce.cells import Cell
from fedaf.reproduce.tables import CONTROLS, CORE, SEEDS, tables


@dataclass(frozen=True)
class Filter:
    """Which cells to run; an empty field selects all. ``methods`` has methods, variants, or ``controls``."""

    datasets: tuple[str, ...] = ()
    alphas: tuple[float, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = SEEDS

    def takes(self, cell: Cell) -> bool:
        names = {cell.variant, "controls" if cell.variant in CONTROLS else cell.method}
        return (
            (not self.datasets or cell.dataset in self.datasets)
            and (not self.alphas or cell.alpha in self.alphas)
            and (not self.methods or not names.isdisjoint(self.methods))
        )


def plan(table: str, wanted: Filter) -> list[Cell]:
    """Return the selected cells of a table, or of ``all`` tables, the most valuable first.

    Raises:
        UserError: If the table or a selected value is unknown, or nothing is left.
    """
    made = tables(wanted.seeds)
    if table not in (*made, "all"):
        expected = f"expected one of {', '.join(made)} or all"
        raise UserError(f"unknown table {table!r}{nearest(table, made)}; {expected}.", code="FEDAF-REPRODUCE-TABLE")
    found = dict.fromkeys(cell for each in made.values() if table in (each.name, "all") for cell in each.cells)
    _must_be_known("--dataset", wanted.datasets, {cell.dataset for cell in found}, table)
    _must_be_known("--alpha", wanted.alphas, {cell.alpha for cell in found if cell.alpha is not None}, table)
    names = {name for cell in found for name in (cell.variant, cell.method)} | {"controls"}
    _must_be_known("--methods", wanted.methods, names, table)
    chosen = sorted((cell for cell in found if wanted.takes(cell)), key=value)
    if not chosen:
        raise UserError(f"no run of {table} matches all of these filters; give fewer.", code="FEDAF-REPRODUCE-FILTER")
    return chosen


def _must_be_known(flag: str, given: Sequence[Any], known: set[Any], table: str) -> None:
    for each in given:
        if each not in known:
            expected = f"expected one of {', '.join(map(str, sorted(known))) or 'nothing'}"
            raise UserError(f"{flag} {each} is not in {table}; {expected}.", code="FEDAF-REPRODUCE-FILTER")


_SECOND = {("cifar10", 0.1), ("cifar100", 0.02), ("fashionmnist", 0.02)}
_STAGES: tuple[Callable[[Cell], bool], ...] = (
    lambda c: _is_standard(c) and c.setting == "cifar10-alpha0.02" and c.seed == 0,
    lambda c: "-ablation-" in c.variant or c.variant == "feddm-published",
    lambda c: _is_standard(c) and c.variant in CORE and (c.dataset, c.alpha) in _SECOND and c.seed == 0,
    lambda c: "-held-out-" in c.variant,
    lambda c: _is_standard(c) and c.dataset == "cifar10" and c.seed == 0,
    lambda c: _is_standard(c) and c.variant in CORE and (c.dataset == "cifar10" or (c.dataset, c.alpha) in _SECOND),
    lambda c: _is_standard(c) and c.dataset == "fashionmnist" and c.seed == 0,
    lambda c: _is_standard(c) and c.dataset == "cifar100" and c.seed == 0,
    lambda c: _is_standard(c) and c.seed == 0,
    lambda c: c.variant.startswith("fedaf-gamma") and c.seed == 0,
    lambda c: c.variant.startswith("fedaf-without") and c.seed == 0,
    lambda c: c.variant.startswith(("fedaf-ipc", "fedaf-plus-ipc")) and c.seed == 0,
    lambda c: c.model == "resnet18" and c.rounds is None and c.seed == 0,
    lambda c: c.variant.endswith("-upload"),
)
_DATASETS = ("cifar10", "cifar100", "fashionmnist", "pacs", "domainnet")
_METHODS = (*CORE, "feddyn", "fedprox", "fedbn", "moon", "fedgen", *CONTROLS)


def _is_standard(cell: Cell) -> bool:
    return cell.variant in _METHODS and cell.model == "convnet"


def value(cell: Cell) -> tuple[int, ...]:
    """Return a sort key: lower is more valuable. Within a stage, data sets and alphas stay together."""
    stage = next((number for number, holds in enumerate(_STAGES) if holds(cell)), len(_STAGES))
    dataset = _DATASETS.index(cell.dataset) if cell.dataset in _DATASETS else len(_DATASETS)
    method = _METHODS.index(cell.variant) if cell.variant in _METHODS else len(_METHODS)
    return stage, cell.seed, dataset, round(1000 * (cell.alpha or 0)), method
