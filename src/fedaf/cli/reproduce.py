"""``fedaf reproduce``: run the paper's tables and write the report."""

from collections import Counter
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
_TABLES = "label-skew, feature-skew, ipc, core-designs, gamma, resnet18, communication, convergence, settings or all."
_RENDER = """\
Write RESULTS.md and its figures from the finished runs of seeds 0, 1 and 2, after running TABLE if it is given. \
With --data-dir, train a network and draw the features of domains too."""


def reproduce(
    table: Annotated[str | None, typer.Argument(help=_TABLES, show_default=False)] = None,
    dataset: Annotated[str | None, typer.Option(help="Only these data sets, separated by commas.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Only these alphas, separated by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, variants, or controls, with commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, with commas (default 0,1,2); settings has its own.")] = None,
    budget: Annotated[float | None, typer.Option(help="Minutes; stop after the round that uses them up.")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Runs at once; four take half the time on a large GPU.")] = 1,
    list_: Annotated[bool, typer.Option("--list", help="Show finished and open runs; run nothing.")] = False,
    render: Annotated[bool, typer.Option("--render", help=_RENDER)] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder that holds the data sets. (default: data)")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    engine: Annotated[str, typer.Option(help="auto, eager or cuda-graphs. If set, only its runs count.")] = "auto",
    precision: Annotated[str, typer.Option(help="auto, fp32, tf32 or bf16. If set, only its runs count.")] = "auto",
    results: Annotated[Path, typer.Option(help="Folder of finished runs.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder of unfinished runs.")] = Path("runs/reproduce"),
    docs: Annotated[Path, typer.Option(help="Folder that --render writes to.")] = Path("docs"),
    features: Annotated[str | None, typer.Option(help="module:factory of a network for --render's features.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Verbose output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only failures and what is left.")] = False,
) -> None:
    """Run the paper's tables, the most valuable runs first; with --render, compare them with the paper.

    Finished runs in --results are not run again. The same command continues where it was stopped, also within a run.
    A run that fails does not stop the others. Try [bold]fedaf reproduce convergence --list[/].
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)

    def say(*lines: str) -> None:
        for line in lines:
            print_line(terminal.console, line)

    if table is None and not render:
        raise UserError("give a table, such as label-skew or all, or --render.", code="FEDAF-REPRODUCE-TABLE")
    if budget is not None and not budget > 0:
        raise UserError(f"--budget is {budget:g}; expected a number of minutes above 0.", code="FEDAF-REPRODUCE-BUDGET")
    failed = False
    if table is not None:
        alphas, chosen_seeds = _numbers("--alpha", alpha, float), _numbers("--seeds", seeds, int) or SEEDS
        cells = plan(table, Filter(_split(dataset), alphas, _split(methods), chosen_seeds))
        from fedaf.engine.registry import ENGINES
        from fedaf.reproduce.running import Audience, Places, Reproduction
        from fedaf.sweep.budget import Budget

        time = Budget(budget)
        places = Places(results, work, data_dir or Path("data"), device, ENGINES.canonical(engine), precision)
        reproduction = Reproduction(cells, places)
        say(*reproduction.archive.damaged.values())
        if list_:
            terminal.console.print(_listed(reproduction))
            say(*_without_data(reproduction))
        else:
            audience = Audience((lambda _: None) if quiet else say, terminal.observer, terminal.prepare)
            tally = reproduction.run(time, audience, jobs=jobs)
            say(*_ending(reproduction, tally, quiet=quiet))
            failed = bool(tally.failed)
    if render:
        from fedaf.reproduce.report import render as write

        say(*write(results, docs, data_dir=data_dir, device=device, features=features))
    if failed:
        raise typer.Exit(_SOME_FAILED)


def _split(given: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (given or "").split(",") if part.strip())


def _numbers(flag: str, given: str | None, kind: type[Any]) -> tuple[Any, ...]:
    try:
        return tuple(dict.fromkeys(map(kind, _split(given))))
    except ValueError:
        what = f"{'whole ' if kind is int else ''}numbers separated by commas"
        raise UserError(f"{flag} is {given!r}; expected {what}.", code="FEDAF-REPRODUCE-FILTER") from None


def _listed(reproduction: "Reproduction") -> "Table":
    from rich.box import SIMPLE
    from rich.table import Table

    from fedaf.reporting.tables import duration
    from fedaf.reproduce.archive import config_of

    shown = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    shown.add_column("run", overflow="fold")
    shown.add_column("", no_wrap=True)
    shown.add_column("left", justify="right", no_wrap=True)
    for cell in reproduction.cells:
        done, rounds = cell in reproduction.done, reproduction.rounds_done(cell)
        begun = f"round {rounds} of {config_of(cell).run.rounds}" if rounds else "open"
        state = "done" if done else begun if reproduction.has_data(cell) else "no data"
        seconds = None if done else reproduction.seconds_left(cell)
        shown.add_row(cell.directory, state, "" if seconds is None else duration(seconds))
    return shown


def _without_data(reproduction: "Reproduction") -> list[str]:
    """Return a line for each data set that is missing."""
    count, where = Counter(cell.dataset for cell in reproduction.without_data), reproduction.places.data_dir
    wait = "of the runs must wait; fedaf data list shows how to get it"
    return [f"{name} is not in {where}, so {runs} {wait}." for name, runs in count.items()]


def _ending(reproduction: "Reproduction", tally: "Tally", *, quiet: bool) -> list[str]:
    """Return the closing lines: results and what is left."""
    failures = [f"{cell.directory} failed: {reason}" for cell, reason in tally.failed.items()] if quiet else []
    finished = len(reproduction.done) + len(tally.finished)
    done = f"{finished} of {len(reproduction.cells)} runs are in {reproduction.places.results}"
    rest = f"; {reproduction.time_left(tally.left)}: the same command continues" if tally.left else ""
    failed = f"; {len(tally.failed)} failed" if tally.failed else ""
    busy = f"; {len(tally.busy)} are being run by another process" if tally.busy else ""
    return [*failures, *_without_data(reproduction), f"{done}{failed}{busy}{rest}."]
