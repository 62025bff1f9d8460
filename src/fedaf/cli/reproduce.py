"""``fedaf reproduce``: run the paper's tables and write the report."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaf.cli.terminal import Terminal, print_line
from fedaf.errors import UserError
from fedaf.reproduce.order import Filter, plan
from fedaf.reproduce.tables import SEEDS

if TYPE_CHECKING:
    from rich.table import Table

    from fedaf.reproduce.running import Reproduction, Tally

_SOME_FAILED = 1


def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            help="label-skew, feature-skew, ipc, core-designs, gamma, resnet18, communication, convergence, settings "
            "or all.",
            show_default=False,
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Only these data sets, separated by commas.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Only these alphas, separated by commas.")] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="Only these methods or variants, such as fedaf-ipc10, separated by commas; see --list."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds, separated by commas, for all tables but settings. (default: 0,1,2)")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Time limit in minutes, checked after each round; the same command continues.")
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(min=1, max=64, help="Number of runs at once on one device; a large GPU has room for a few."),
    ] = 1,
    list_: Annotated[bool, typer.Option("--list", help="List all runs and which are done; run nothing.")] = False,
    render: Annotated[
        bool,
        typer.Option(
            "--render",
            help="Write RESULTS.md and its figures from the finished runs of seeds 0, 1 and 2. If TABLE is given, run "
            "it first. With --data-dir, also train a network and plot its features by domain.",
        ),
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data sets. (default: data)")] = None,
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda, cuda:N or mps.")] = "auto",
    engine: Annotated[
        str, typer.Option(help="auto, eager or cuda-graphs. Unless auto, only runs with this engine count as done.")
    ] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto, fp32, tf32 or bf16. Unless auto, only runs with this precision count as done.")
    ] = "auto",
    results: Annotated[Path, typer.Option(help="Folder of finished runs.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder of unfinished runs.")] = Path("runs/reproduce"),
    docs: Annotated[Path, typer.Option(help="Folder that --render writes to.")] = Path("docs"),
    features: Annotated[
        str | None, typer.Option(help="For --render: network whose features are plotted, as module:factory.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Verbose output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only failed and remaining runs.")] = False,
) -> None:
    """Run the paper's tables, the most important runs first; with --render, compare the results with the paper.

    Runs that are in --results are not repeated. After a stop, the same command continues after the last complete round.
    A run that fails does not stop the others. Try [bold]fedaf reproduce convergence --list[/].
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    if table is None and not render:
        raise UserError(
            "fedaf reproduce needs a table, such as label-skew or all, or --render; see --help.",
            code="FEDAF-REPRODUCE-TABLE",
        )
    if budget is not None and not budget > 0:
        raise UserError(f"--budget is {budget:g}; expected a number of minutes above 0.", code="FEDAF-REPRODUCE-BUDGET")
    failed = False
    if table is not None:
        chosen = Filter(
            tuple(_split(dataset)),
            tuple(_numbers("--alpha", alpha, float)),
            tuple(_split(methods)),
            tuple(dict.fromkeys(_numbers("--seeds", seeds, int))) or SEEDS,
        )
        cells = plan(table, chosen)
        from fedaf.engine.registry import ENGINES
        from fedaf.reproduce.running import Audience, Places, Reproduction
        from fedaf.sweep.budget import Budget

        time = Budget(budget)
        places = Places(results, work, data_dir or Path("data"), device, ENGINES.canonical(engine), precision)
        reproduction = Reproduction(cells, places)
        _say_damaged(reproduction, terminal)
        if list_:
            terminal.console.print(_listed(reproduction))
            for line in _without_data(reproduction):
                print_line(terminal.console, line)
        else:
            say: Callable[[str], None] = (
                (lambda _: None) if quiet else (lambda line: print_line(terminal.console, line))
            )
            tally = reproduction.run(time, Audience(say, terminal.observer, terminal.prepare), jobs=jobs)
            for line in _ending(reproduction, tally, quiet=quiet):
                print_line(terminal.console, line)
            failed = bool(tally.failed)
    if render:
        from fedaf.reproduce.report import render as write

        for line in write(results, docs, data_dir=data_dir, device=device, features=features):
            print_line(terminal.console, line)
    if failed:
        raise typer.Exit(_SOME_FAILED)


def _split(given: str | None) -> list[str]:
    return [part.strip() for part in (given or "").split(",") if part.strip()]


def _numbers(flag: str, given: str | None, kind: type[Any]) -> list[Any]:
    try:
        return [kind(part) for part in _split(given)]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(
            f"{flag} is {given!r}; expected {what} separated by commas.", code="FEDAF-REPRODUCE-FILTER"
        ) from None


def _say_damaged(reproduction: "Reproduction", terminal: Terminal) -> None:
    for sentence in reproduction.archive.damaged.values():
        print_line(terminal.console, sentence)


def _listed(reproduction: "Reproduction") -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table

    from fedaf.reporting.tables import duration
    from fedaf.reproduce.archive import config_of

    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    shown.add_column("run", overflow="fold")
    shown.add_column("state", no_wrap=True)
    shown.add_column("time left", justify="right", no_wrap=True)
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
