"""``fedaf reproduce``: run the paper's tables and write the report."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Column, Table

from fedaf.cli.options import Flags, Quiet, Verbose, split, with_flags
from fedaf.cli.terminal import Terminal, print_line
from fedaf.engine.registry import ENGINES
from fedaf.errors import UserError
from fedaf.reproduce.order import Filter, plan
from fedaf.reproduce.tables import SEEDS

if TYPE_CHECKING:
    from fedaf.reproduce.running import Reproduction, Tally

_SOME_FAILED = 1
_RESULTS, _WORK, _DOCS = Path("results"), Path("runs/reproduce"), Path("docs")


@with_flags("data_dir", "device", "engine", "precision")
def reproduce(
    *,
    table: Annotated[str | None, typer.Argument()] = None,
    dataset: str | None = None,
    alpha: str | None = None,
    methods: str | None = None,
    seeds: str | None = None,
    budget: float | None = None,
    jobs: Annotated[int, typer.Option(min=1, max=64)] = 1,
    list_: bool = False,
    render: bool = False,
    flags: Flags,
    results: Path = _RESULTS,
    work: Path = _WORK,
    docs: Path = _DOCS,
    features: str | None = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's tables, the most valuable runs first; with --render, compare them with the paper.

    Finished runs in --results are not run again. The same command continues where it was stopped, also within a run.
    If --engine or --precision is given, only runs that were computed with it count as finished.
    A run that fails does not stop the others. Try [bold]fedaf reproduce convergence --list[/].

    Args:
        table: label-skew, feature-skew, ipc, core-designs, gamma, resnet18, communication, convergence, settings or
            all.
        dataset: Only these data sets, separated by commas.
        alpha: Only these alphas, separated by commas.
        methods: Only these methods, separated by commas; also variants such as fedaf-ipc10, and controls.
        seeds: Seeds, separated by commas; the table settings has its own. (default: 0,1,2)
        budget: Minutes. Stop after the round in which they are used up; nothing is lost.
        jobs: Runs at once on one device. Four take half the time on a large GPU.
        list_: Show finished and open runs; run nothing.
        render: Write RESULTS.md and its figures from the finished runs of seeds 0, 1 and 2, after running TABLE if
            it is given. With --data-dir, train a network and draw the features of domains too.
        results: Folder of finished runs.
        work: Folder of unfinished runs.
        docs: Folder that --render writes to.
        features: For --render: module:factory of a network whose features are drawn.
        quiet: Print only failures and what is left.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    if table is None and not render:
        message = "fedaf reproduce needs a table, such as label-skew or all, or --render; see --help."
        raise UserError(message, code="FEDAF-REPRODUCE-TABLE")
    if budget is not None and not budget > 0:
        raise UserError(f"--budget is {budget:g}; expected a number of minutes above 0.", code="FEDAF-REPRODUCE-BUDGET")
    data_dir = None if flags["data_dir"] is None else Path(flags["data_dir"])
    device, engine, precision = (flags[name] or "auto" for name in ("device", "engine", "precision"))
    failed = False
    if table is not None:
        numbers = tuple(dict.fromkeys(_numbers("--seeds", seeds, int))) or SEEDS
        cells = plan(
            table, Filter(tuple(split(dataset)), _numbers("--alpha", alpha, float), tuple(split(methods)), numbers)
        )
        from fedaf.reproduce.running import Audience, Places, Reproduction
        from fedaf.sweep.budget import Budget

        time = Budget(budget)
        places = Places(results, work, data_dir or Path("data"), device, ENGINES.canonical(engine), precision)
        reproduction = Reproduction(cells, places)
        for sentence in reproduction.archive.damaged.values():
            print_line(terminal.console, sentence)
        if list_:
            terminal.console.print(_listed(reproduction))
            lines = _without_data(reproduction)
        else:
            tally = reproduction.run(time, Audience(terminal.say, terminal.observer, terminal.prepare), jobs=jobs)
            lines = _ending(reproduction, tally, quiet=quiet)
            failed = bool(tally.failed)
        for line in lines:
            print_line(terminal.console, line)
    if render:
        from fedaf.reproduce.report import render as write

        for line in write(results, docs, data_dir=data_dir, device=device, features=features):
            print_line(terminal.console, line)
    if failed:
        raise typer.Exit(_SOME_FAILED)


def _numbers(flag: str, given: str | None, kind: type[Any]) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in split(given))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        message = f"{flag} is {given!r}; expected {what} separated by commas."
        raise UserError(message, code="FEDAF-REPRODUCE-FILTER") from None


def _listed(reproduction: "Reproduction") -> Table:
    from fedaf.reporting.tables import duration
    from fedaf.reproduce.archive import config_of

    left = Column("left", justify="right", no_wrap=True)
    shown = Table(Column("run", overflow="fold"), Column(no_wrap=True), left, box=SIMPLE, padding=(0, 1, 0, 0))
    for cell in reproduction.cells:
        seconds = None if cell in reproduction.done else reproduction.seconds_left(cell)
        state = "open"
        if cell in reproduction.done:
            state = "done"
        elif not reproduction.has_data(cell):
            state = "no data"
        elif rounds := reproduction.rounds_done(cell):
            state = f"round {rounds} of {config_of(cell).run.rounds}"
        shown.add_row(cell.directory, state, "" if seconds is None else duration(seconds))
    return shown


def _without_data(reproduction: "Reproduction") -> list[str]:
    """Return a line for each data set that is missing."""
    count = Counter(cell.dataset for cell in reproduction.without_data)
    data_dir = reproduction.places.data_dir
    return [
        f"{name} is not in {data_dir}, so {runs} of the runs must wait; fedaf data list shows how to get it."
        for name, runs in count.items()
    ]


def _ending(reproduction: "Reproduction", tally: "Tally", *, quiet: bool) -> list[str]:
    """Return the closing lines: results and what is left."""
    lines = []
    if quiet:
        lines += [f"{cell.directory} failed: {reason}" for cell, reason in tally.failed.items()]
    lines += _without_data(reproduction)
    finished = len(reproduction.done) + len(tally.finished)
    done = f"{finished} of {len(reproduction.cells)} runs are in {reproduction.places.results}"
    rest = f"; {reproduction.time_left(tally.left)}: the same command continues" if tally.left else ""
    failed = f"; {len(tally.failed)} failed" if tally.failed else ""
    busy = f"; {len(tally.busy)} are being run by another process" if tally.busy else ""
    return [*lines, f"{done}{failed}{busy}{rest}."]
