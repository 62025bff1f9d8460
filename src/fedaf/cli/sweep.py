"""``fedaf sweep``: run a grid of settings, or search for the best ones."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedaf import config as configuration
from fedaf.cli.options import Flags, Quiet, Verbose, output_option, split, with_flags
from fedaf.cli.terminal import Terminal, continued_by, print_line, this_command
from fedaf.common.naming import slug
from fedaf.config.toml import toml_value
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.config import Config
    from fedaf.runs.experiment import Experiment
    from fedaf.sweep.budget import Budget
    from fedaf.sweep.sweep import Sweep

_SOME_FAILED = 1
_OUT = "Folder of the sweep, new or to continue. (default: runs/ and the name of the grid file)"


@with_flags("data_dir", "device")
def sweep(
    *,
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml")],
    flags: Flags,
    jobs: Annotated[int, typer.Option(min=1, max=64)] = 1,
    budget: float | None = None,
    cell: str | None = None,
    list_: bool = False,
    slurm: bool = False,
    out: Annotated[Path | None, output_option(help=_OUT)] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run every combination of the lists in a grid file: one table, with paired differences between methods.

    With a table called search, look for the best values of settings on held-out training images instead.
    The same command continues a sweep that was stopped: finished runs are kept, a stopped one continues after its last
    complete round. A run that fails does not stop the others.
    Several processes can work on the same sweep.

    Args:
        grid: A TOML file: settings as in the file of a run, and a table called grid with lists of values.
        jobs: Number of runs at once on one device; a large GPU has room for a few.
        budget: Time limit in minutes, checked after each round; the same command continues.
        cell: Run only these cells, named as in --list and separated by commas.
        list_: List all runs and which are done; run nothing.
        slurm: Write an sbatch script with a task for each open run; run nothing.
        quiet: Print only the result, failed and remaining runs.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    if budget is not None and not budget > 0:
        raise UserError(f"--budget is {budget:g}; expected a number of minutes above 0.", code="FEDAF-SWEEP-BUDGET")
    from fedaf.sweep.budget import Budget
    from fedaf.sweep.grid import expand

    time, folder = Budget(budget), out or Path("runs") / slug(grid.stem)
    content = configuration.read_toml(grid, what="grid file")
    if "search" in content:
        for option, value in {"--cell": cell, "--list": list_, "--slurm": slurm}.items():
            if value:
                what = f"{option} is for grids; a search draws its runs one after the other, so leave it out."
                raise UserError(what, code="FEDAF-SWEEP-SEARCH")
        _search(content, folder, configuration.from_flags(**flags), time, terminal, jobs)
        return
    from fedaf.sweep.sweep import Sweep

    series = Sweep(expand(content), folder, configuration.from_flags(**flags))
    if cell is not None:
        series.only(split(cell))
    if list_:
        terminal.console.print(series.table())
        return
    if slurm:
        series.begin()
        _write_script(series, grid, jobs, flags, budget, terminal)
        return
    from fedaf.runs.assembly import SharedData
    from fedaf.sweep.running import Audience

    shared = SharedData()

    def prepare(config: "Config") -> "Experiment":
        return terminal.prepare(config, shared)

    series.check(prepare)
    series.begin()
    if jobs > 1:
        shared = SharedData()  # workers read the data themselves
    with continued_by(this_command()):
        tally = series.run(time, Audience(terminal.say, terminal.observer, prepare), jobs=jobs)
    _report(series, terminal, is_whole=cell is None)
    for line in [*(tally.failures if quiet else []), series.closing(tally, where="done")]:
        print_line(terminal.console, line)
    if tally.failed:
        raise typer.Exit(_SOME_FAILED)


def _search(
    content: Mapping[str, Any], folder: Path, given: Mapping[str, Any], time: "Budget", terminal: Terminal, jobs: int
) -> None:
    """Run a search, print its best trial and say where it is."""
    from fedaf.sweep.running import Audience
    from fedaf.sweep.search import BEST, STUDY, TRIALS, run_search
    from fedaf.sweep.space import Search

    search = Search.read(content)
    with continued_by(this_command()):
        audience = Audience(terminal.say, terminal.observer, terminal.prepare)
        found = run_search(search, folder, given, time, audience, jobs=jobs)
    for name, reason in found.failures.items():
        print_line(terminal.console, f"{name} failed: {reason}")
    done = f"{len(found.trials)} of {search.table.trials} trials are done"
    print_line(terminal.console, f"{done}." if found.is_finished else f"{done}; the same command continues.")
    if found.best is not None:
        images = search.fixed["data"]["validation"]
        where = f"{search.measure.name} {found.best.score:.4f} on {images} held-out training images"
        print_line(terminal.console, f"The best is trial {found.best.number}: {where}.")
        for path, value in found.best.values.items():
            print_line(terminal.console, f"  {path} = {toml_value(value)}")
        print_line(terminal.console, f"Results are in {folder}: {BEST}, {TRIALS}, {STUDY}, and a directory per run.")
        terminal.say(f"Run it on the test set with: fedaf run {shlex.quote(str(folder / BEST))}")
    if found.failures:
        raise typer.Exit(_SOME_FAILED)


def _write_script(
    series: "Sweep", grid: Path, jobs: int, flags: Flags, budget: float | None, terminal: Terminal
) -> None:
    from fedaf.common.files import write_atomically
    from fedaf.sweep.slurm import SCRIPT, script

    if not series.open:
        print_line(terminal.console, f"All {len(series.cells)} runs are done; there is nothing to submit.")
        return
    given = {"--jobs": None if jobs == 1 else jobs, "--budget": budget}
    given |= {configuration.FLAGS[name].option: value for name, value in flags.items()}
    words: list[Any] = [sys.executable, "-m", "fedaf", "sweep", grid, "--out", series.out, "--quiet"]
    words += [word for pair in given.items() if pair[1] is not None for word in pair]
    cells: Sequence[str] = [cell.directory for cell in series.open]
    text = script(cells, list(map(str, words)), out=series.out, here=Path.cwd(), jobs=jobs)
    write_atomically(series.out / SCRIPT, text)
    submit = f"sbatch {shlex.quote(str(series.out / SCRIPT))}"
    print_line(terminal.console, f"{len(cells)} runs are open. Submit them with: {submit}")
    print_line(terminal.console, f"The same command without --slurm then prints the table: {_without_slurm()}")


def _without_slurm() -> str:
    return shlex.join(["fedaf", *(word for word in sys.argv[1:] if word != "--slurm")])


def _report(series: "Sweep", terminal: Terminal, *, is_whole: bool) -> None:
    """Write the files of the sweep and, unless only some cells were run, print its tables."""
    from fedaf.reporting import differences
    from fedaf.sweep.sweep import write_outputs

    found, files = write_outputs(series)
    if not found.figures or not is_whole:
        return
    terminal.show(found.results_table())
    if table := found.differences_table():
        terminal.show(table)
        print_line(terminal.console, differences.EXPLANATION)
    elif any(found.differences.values()):
        print_line(terminal.console, "One seed gives no verdict: differences may be chance. Add seeds to run.seed.")
    if len(found.conditions) > 1:
        how = "; ".join(found.conditions)
        print_line(terminal.console, f"Runs were computed in different ways, which may explain differences: {how}.")
    print_line(terminal.console, f"Results are in {series.out}: {', '.join(files)}, and a directory per run.")
