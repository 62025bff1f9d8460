"""``fedaf report``: one HTML file with the results of runs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedaf.cli.options import check_file, output_option
from fedaf.cli.terminal import print_line


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    out: Annotated[Path | None, output_option(metavar="FILE")] = None,
    title: Annotated[str | None, output_option()] = None,
    against: Annotated[str | None, output_option(metavar="METHOD")] = None,
) -> None:
    """Write the report of finished runs: one HTML file that needs neither a server nor a network.

    Runs that differ only in their seed are averaged; their curves have a band.
    fedaf run and fedaf compare write such a report themselves.
    Try [bold]fedaf report runs/demo[/].

    Args:
        runs: Run directories, directories of comparisons, or folders that hold runs.
        out: The file to write. (default: report.html in RUN, or in the current directory if several are given)
        title: The title of the report. (default: methods and data of the runs)
        against: Compare the other methods with this one. (default: that of the comparison, else the first)
    """
    from fedaf.runs.report import report as write

    check_file("--out", out)
    print_line(Console(emoji=False), f"The report is in {write(runs, out, title=title, against=against)}.")
