"""What the commands show: before a run, while it goes on, and what came of it."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.config.settings import Config
    from fedaf.federation.observer import Observer
    from fedaf.runs.experiment import Experiment, RunResult

_LONG_RUN = 30  # seconds from which on a run is announced with an estimate
_MOST_CLIENTS = 50  # whose data are shown


def print_line(console: Console, text: str) -> None:
    """One line as it is, however long."""
    console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


class Terminal:
    """A console that says more, or nothing but results."""

    def __init__(self, *, verbose: bool = False, quiet: bool = False) -> None:
        if verbose and quiet:
            raise UserError("-v and -q contradict each other; give one.")
        level = logging.DEBUG if verbose else logging.ERROR if quiet else logging.WARNING
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        logging.getLogger("fedaf").setLevel(level)
        self.console, self._verbose, self._quiet = Console(emoji=False), verbose, quiet

    def observer(self) -> "Observer":
        from fedaf.federation.observer import Observer
        from fedaf.reporting.progress import LiveProgress, PlainProgress

        if self._quiet:
            return Observer()
        return (LiveProgress if self.console.is_terminal else PlainProgress)(self.console, verbose=self._verbose)

    def prepare(self, config: "Config") -> "Experiment":
        """Open the data and check everything, with a bar where many images must be read."""
        from fedaf.reporting.progress import reading
        from fedaf.runs.experiment import prepare

        with reading(Console(quiet=True) if self._quiet else self.console) as watch:
            return prepare(config, watch=watch)

    def say_where(self, folder: Path) -> None:
        """Before the run: the directory that --resume takes if it is stopped."""
        if not self._quiet:
            print_line(self.console, f"Everything goes to {folder}.")

    def announce(self, experiment: "Experiment", *, with_split: bool = True) -> None:
        """Before the run: who holds what, and how long it will take if that is long."""
        from fedaf.reporting import tables
        from fedaf.runs import estimate

        if self._quiet:
            return
        if with_split and len(experiment.counts) <= _MOST_CLIENTS:
            self.console.print(tables.partition_table(experiment.counts))
        seconds = estimate.seconds(experiment)
        if seconds is not None and seconds >= _LONG_RUN:
            name, device = experiment.config.method_name, experiment.engine.device
            print_line(self.console, f"{name} will take roughly {tables.duration(seconds)} on {device}.")
            if seconds > 3600 and experiment.config.preset != "quick":
                print_line(self.console, "For a first look, --preset quick is much shorter.")

    def report(self, result: "RunResult") -> None:
        """The table of one run, and its pictures."""
        assert result.directory is not None
        self.report_directory(result.directory)

    def report_directory(self, run: Path, *, kept: bool = True) -> None:
        """The table of the run in a directory; where that is kept, its pictures too."""
        from fedaf.federation.run_directory import PARTITION
        from fedaf.reporting import figures

        result = figures.read_result(run)
        if not kept:
            self._results([result])
            return
        pictures = [figures.curves([result], run / "curves.png")]
        if (run / PARTITION).is_file():  # over a network, nobody knows who holds what
            pictures.append(figures.bubbles(run, run / "partition.png"))
        gallery = figures.gallery(run, run / "condensed.png")
        self._results([result])
        names = [picture.name for picture in (*pictures, *([gallery] if gallery else []))]
        print_line(self.console, f"Everything is in {run}: result.json, {', '.join(names)}.")

    def report_comparison(self, folder: Path, names: Sequence[str], *, target: float | None = None) -> None:
        """The table of several runs under one directory, with rounds to a target accuracy, and their pictures."""
        from fedaf.reporting import figures

        results = [figures.read_result(folder / name) for name in names]
        figures.curves(results, folder / "curves.png")
        figures.bubbles(folder / names[0], folder / "partition.png")
        galleries = [figures.gallery(folder / name, folder / f"condensed-{name}.png") for name in names]
        self._results(results, target)
        pictures = ["curves.png", "partition.png", *(g.name for g in galleries if g is not None)]
        print_line(self.console, f"Everything is in {folder}: {', '.join(pictures)}, and a directory for each run.")

    def _results(self, results: Sequence[Mapping[str, Any]], target: float | None = None) -> None:
        from fedaf.reporting import tables

        self.console.print(tables.results_table(results, target=target))
        if by_domain := tables.domains_table(results):
            self.console.print(by_domain)
        for result in results:
            for sentence in (tables.personal_sentence, tables.audit_sentence, tables.overhead_sentence):
                if said := sentence(result):
                    print_line(self.console, said)
