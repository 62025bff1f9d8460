"""A plan of runs on digits that take a second each, in place of the paper's."""

from dataclasses import replace
from pathlib import Path

from fedaf.federation.observer import Observer
from fedaf.reproduce.cells import Cell, Line, Section, Table
from fedaf.reproduce.running import Places, Reproduction
from fedaf.sweep.budget import Budget
from fedaf.sweep.running import Audience, Tally

SMALL = (("model.width", 8), ("partition.clients", 3), ("run.threads", 1))
FEDAVG = Cell("digits", 0.1, "fedavg", 0, (("local_epochs", 1),), rounds=3, more=SMALL)
FEDAVG_1 = replace(FEDAVG, seed=1)
_OPTIONS = (("ipc", 5), ("local_steps", 2), ("server_epochs", 2))
FEDAF = Cell("digits", 0.1, "fedaf", 0, _OPTIONS, rounds=3, more=SMALL)
BROKEN = Cell("digits", 0.1, "fedavg-of-a-crowd", 0, rounds=1, more=(("partition.clients", 1000),))
TABLE = Table(
    "label-skew",
    "Digits",
    "A few digits.",
    (
        Section(
            "digits", "Digits", (Line("FedAvg", (FEDAVG, FEDAVG_1), (50.0, 1.0)), Line("FedAF", (FEDAF,), (60.0, None)))
        ),
    ),
)


def places(folder: Path) -> Places:
    return Places(folder / "results", folder / "work", folder / "data", "cpu")


def reproduced(
    cells: list[Cell], folder: Path, *, observer: Observer | None = None, budget: Budget | None = None
) -> tuple[Tally[Cell], list[str]]:
    """What came of running these cells, and what was said."""
    said: list[str] = []
    watching = observer or Observer()
    audience = Audience(said.append, lambda: watching)
    return Reproduction(cells, places(folder)).run(budget or Budget(), audience), said
