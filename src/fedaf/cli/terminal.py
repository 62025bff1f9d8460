"""Output of the commands: before, during and after a run."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.config import Config
    from fedaf.federation.observer import Observer
    from fedaf.runs.experiment import Experiment, RunResult

_LONG_RUN = 30  # seconds; the estimate of a longer run is printed
_MOST_CLIENTS = 50  # a larger partition is not printed


def print_line(console: Console, text: str) -> None:
    """Print one line without markup or wrapping."""
    console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


class Terminal:
    """The console of one command, with its verbosity."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        if verbose and quiet:
            raise UserError("-v and -q exclude each other; use one of them.", code="FEDAF-CLI-VERBOSITY")
        level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        logging.getLogger("fedaf").setLevel(level)
        self.console, self._verbose, self._quiet = Console(emoji=False), verbose, quiet

    def observer(self) -> "Observer":
        """Return an observer that shows the progress of one run."""
        from fedaf.federation.observer import Observer
        from fedaf.reporting.progress import LiveProgress, PlainProgress

        if self._quiet:
            return Observer()
        return (LiveProgress if self.console.is_terminal else PlainProgress)(self.console, verbose=self._verbose)

    def prepare(self, config: "Config") -> "Experiment":
        """Load the data and check the configuration, with a progress bar if many images must be read."""
        from fedaf.reporting.progress import reading
        from fedaf.runs.experiment import prepare

        with reading(Console(quiet=True) if self._quiet else self.console) as watch:
            return prepare(config, watch=watch)

    def say_where(self, folder: Path) -> None:
        """Print the directory of the run, which --resume needs if the run stops."""
        if not self._quiet:
            print_line(self.console, f"Writing to {folder}.")

    def announce(self, experiment: "Experiment", *, with_split: bool = True) -> None:
        """Print the partition, and the estimated time of a long run."""
        from fedaf.reporting import tables
        from fedaf.runs import estimate

        if self._quiet:
            return
        if with_split and len(experiment.counts) <= _MOST_CLIENTS:
            self.console.print(tables.partition_table(experiment.counts))
        seconds = estimate.seconds(experiment)
        if seconds is not None and seconds >= _LONG_RUN:
            name, device = experiment.config.method_name, experiment.engine.device
            print_line(self.console, f"{name} will take about {tables.duration(seconds)} on {device}.")
            if seconds > 3600 and experiment.config.preset != "quick":
                print_line(self.console, "For a first look, --preset quick is much shorter.")

    def report(self, result: "RunResult") -> None:
        """Print the results table of a run and draw its figures."""
        assert result.directory is not None
        self.report_directory(result.directory)

    def report_directory(self, run: Path, *, kept: bool = True) -> None:
        """Print the results table of the run in a directory; if the directory is kept, draw figures too."""
        from fedaf.federation.run_directory import PARTITION
        from fedaf.reporting import figures

        result = figures.read_result(run)
        if not kept:
            self._results([result])
            return
        pictures = [figures.curves([result], run / "curves.png")]
        if (run / PARTITION).is_file():  # unknown over a network
            pictures.append(figures.bubbles(run, run / "partition.png"))
        gallery = figures.gallery(run, run / "condensed.png")
        self._results([result])
        names = [picture.name for picture in (*pictures, *([gallery] if gallery else []))]
        print_line(self.console, f"Results are in {run}: result.json, {', '.join(names)}.")

    def report_comparison(self, folder: Path, names: Sequence[str], *, target: float | None = None) -> None:
        """Print the results table of several runs, with the rounds to a target accuracy, and draw their figures."""
        from fedaf.reporting import figures

        results = [figures.read_result(folder / name) for name in names]
        figures.curves(results, folder / "curves.png")
        figures.bubbles(folder / names[0], folder / "partition.png")
        galleries = [figures.gallery(folder / name, folder / f"condensed-{name}.png") for name in names]
        self._results(results, target)
        pictures = ["curves.png", "partition.png", *(g.name for g in galleries if g is not None)]
        print_line(self.console, f"Results are in {folder}: {', '.join(pictures)}, and a directory per run.")

    def _results(self, results: Sequence[Mapping[str, Any]], target: float | None = None) -> None:
        from fedaf.reporting import tables

        self.console.print(tables.results_table(results, target=target))
        if by_domain := tables.domains_table(results):
            self.console.print(by_domain)
        for result in results:
            for sentence in (tables.personal_sentence, tables.audit_sentence, tables.overhead_sentence):
                if said := sentence(result):
                    print_line(self.console, said)
