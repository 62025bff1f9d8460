"""``fedaf reproduce``: run the paper's tables and write the report."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaf.cli.options import Flags, Quiet, Verbose, split, with_flags
from fedaf.cli.terminal import Terminal, continued_by, print_line, this_command
from fedaf.engine.registry import ENGINES
from fedaf.errors import UserError
from fedaf.reproduce.order import Filter, plan
from fedaf.reproduce.tables import SEEDS

if TYPE_CHECKING:
    from fedaf.reproduce.cells import Cell
    from fedaf.reproduce.running import Reproduction
    from fedaf.sweep.running import Tally

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
    """Run the paper's tables, the most important runs first; with --render, compare the results with the paper.

    Runs that are in --results are not repeated. After a stop, the same command continues after the last complete round.
    If --engine or --precision is given, only runs with it count as done.
    A run that fails does not stop the others. Try [bold]fedaf reproduce convergence --list[/].

    Args:
        table: label-skew, feature-skew, ipc, core-designs, gamma, resnet18, communication, convergence, plus, settings
            or all.
        dataset: Only these data sets, separated by commas.
        alpha: Only these alphas, separated by commas.
        methods: Only these methods or variants, such as fedaf-ipc10, separated by commas; see --list.
        seeds: Seeds, separated by commas, for all tables but plus and settings. (default: 0,1,2)
        budget: Time limit in minutes, checked after each round; the same command continues.
        jobs: Number of runs at once on one device; a large GPU has room for a few.
        list_: List all runs and which are done; run nothing.
        render: Write RESULTS.md and its figures from the finished runs of seeds 0, 1 and 2. If TABLE is given, run
            it first. With --data-dir, also train a network and plot its features by domain.
        results: Folder of finished runs.
        work: Folder of unfinished runs.
        docs: Folder that --render writes to.
        features: For --render: network whose features are plotted, as module:factory.
        quiet: Print only failed and remaining runs.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)

    def say(*lines: str) -> None:
        for line in lines:
            print_line(terminal.console, line)

    if table is None and not render:
        raise UserError("give a table, such as label-skew or all, or --render.", code="FEDAF-REPRODUCE-TABLE")
    if budget is not None and not budget > 0:
        raise UserError(f"--budget is {budget:g}; expected a number of minutes above 0.", code="FEDAF-REPRODUCE-BUDGET")
    data_dir = None if flags["data_dir"] is None else Path(flags["data_dir"])
    device, engine, precision = (flags[name] or "auto" for name in ("device", "engine", "precision"))
    failed = False
    if table is not None:
        alphas, chosen_seeds = _numbers("--alpha", alpha, float), _numbers("--seeds", seeds, int) or SEEDS
        cells = plan(table, Filter(split(dataset), alphas, split(methods), chosen_seeds))
        from fedaf.reproduce.running import Places, Reproduction
        from fedaf.sweep.budget import Budget
        from fedaf.sweep.running import Audience

        time = Budget(budget)
        places = Places(results, work, data_dir or Path("data"), device, ENGINES.canonical(engine), precision)
        reproduction = Reproduction(cells, places)
        say(*reproduction.archive.damaged.values())
        if list_:
            terminal.console.print(reproduction.table())
            say(*_without_data(reproduction))
        else:
            with continued_by(this_command()):
                tally = reproduction.run(time, Audience(terminal.say, terminal.observer, terminal.prepare), jobs=jobs)
            say(*_ending(reproduction, tally, quiet=quiet))
            say(*_report(reproduction, table))
            failed = bool(tally.failed)
    if render:
        from fedaf.reproduce.report import render as write

        say(*write(results, docs, data_dir=data_dir, device=device, features=features))
    if failed:
        raise typer.Exit(_SOME_FAILED)


def _numbers(flag: str, given: str | None, kind: type[Any]) -> tuple[Any, ...]:
    try:
        return tuple(dict.fromkeys(map(kind, split(given))))
    except ValueError:
        what = f"{'whole ' if kind is int else ''}numbers separated by commas"
        raise UserError(f"{flag} is {given!r}; expected {what}.", code="FEDAF-REPRODUCE-FILTER") from None


def _without_data(reproduction: "Reproduction") -> list[str]:
    """Return a line for each data set that is missing."""
    count, where = Counter(cell.dataset for cell in reproduction.without_data), reproduction.places.data_dir
    wait = "of the runs must wait; fedaf data list shows how to get it"
    return [f"{name} is not in {where}, so {runs} {wait}." for name, runs in count.items()]


def _report(reproduction: "Reproduction", table: str) -> list[str]:
    """Write the report of the finished runs of a table beside the unfinished ones, and say where it is."""
    from fedaf.reporting.html import write_report
    from fedaf.reproduce.archive import Archive

    archive, places = Archive(reproduction.places.results), reproduction.places
    found = [archive.find(cell, engine=places.engine, precision=places.precision) for cell in reproduction.cells]
    if not (runs := list(dict.fromkeys(run.path for run in found if run is not None))):
        return []
    places.work.mkdir(parents=True, exist_ok=True)
    out = places.work / f"report-{table}.html"
    return [f"The report is in {write_report(runs, out, title=f'fedaf reproduce {table}')}."]


def _ending(reproduction: "Reproduction", tally: "Tally[Cell]", *, quiet: bool) -> list[str]:
    """Return the closing lines: results and what is left."""
    failures = tally.failures if quiet else []
    done = reproduction.closing(tally, where=f"in {reproduction.places.results}")
    return [*failures, *_without_data(reproduction), done]
