"""Output of the commands: before, during and after a run."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Console

from fedaf.common.stages import reached
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.config import Config
    from fedaf.federation.observer import Observer
    from fedaf.runs.experiment import Experiment

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
        reached("the command is read")

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

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        if not self._quiet:
            print_line(self.console, text)

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
            self.say(f"{name} will take about {tables.duration(seconds)} on {device}.")
            if seconds > 3600 and experiment.config.preset != "quick":
                self.say("For a first look, --preset quick is much shorter.")

    def report(
        self, folder: Path, names: Sequence[str] = (), *, target: float | None = None, draw: bool = True
    ) -> None:
        """Print the results table of the run in a folder, or of several runs below it, and draw their figures.

        Args:
            folder: The run directory, or the folder of a comparison.
            names: The run directories in the folder of a comparison.
            target: Show the rounds to this accuracy, in per cent.
            draw: Whether to draw figures into the folder.
        """
        from fedaf.federation.run_directory import PARTITION
        from fedaf.reporting import figures, tables

        runs = [folder / name for name in names] or [folder]
        results = [figures.read_result(run) for run in runs]
        pictures: list[Path | None] = []
        if draw:
            pictures.append(figures.curves(results, folder / "curves.png"))
            if (runs[0] / PARTITION).is_file():  # unknown over a network
                pictures.append(figures.bubbles(runs[0], folder / "partition.png"))
            gallery = "condensed-{}.png" if names else "condensed.png"
            pictures += [figures.gallery(run, folder / gallery.format(run.name)) for run in runs]
        self.console.print(tables.results_table(results, target=target))
        if by_domain := tables.domains_table(results):
            self.console.print(by_domain)
        sentences = (
            tables.personal_sentence,
            tables.disclosure_sentence,
            tables.audit_sentence,
            tables.overhead_sentence,
        )
        for said in filter(None, (sentence(result) for result in results for sentence in sentences)):
            print_line(self.console, said)
        if draw:
            files = ", ".join(picture.name for picture in pictures if picture)
            rest = "a directory per run" if names else "result.json"
            print_line(self.console, f"Results are in {folder}: {files}, and {rest}.")
            if not names:
                self.say(f"Use the model with: fedaf predict {quote(str(folder))} IMAGES")
