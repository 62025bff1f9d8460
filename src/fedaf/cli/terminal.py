"""Output of the commands: before, during and after a run."""

import json
import logging
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from fedaf.common.stages import reached
from fedaf.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from fedaf.config import Config
    from fedaf.federation.observer import Observer
    from fedaf.reporting.targets import Target
    from fedaf.runs.assembly import SharedData
    from fedaf.runs.comparison import Job
    from fedaf.runs.experiment import Experiment

CSV, SUMMARY = "comparison.csv", "summary.json"

_LONG_RUN = 30  # seconds; the estimate of a longer run is printed
_MOST_CLIENTS = 50  # a larger partition is not printed


def print_line(console: Console, text: str) -> None:
    """Print one line without markup or wrapping."""
    console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def _after(prefix: str, sentence: str | None) -> str | None:
    return None if sentence is None else prefix + sentence


class Stopped(Exception):
    """Ctrl-C in a command that can be continued; the message is the command to continue with."""


@contextmanager
def continued_by(command: str) -> Iterator[None]:
    """Turn Ctrl-C in the block, or ``StopRun``, into ``Stopped``, which prints this command.

    Args:
        command: The command as a user pastes it into a shell.
    """
    from fedaf.federation.observer import StopRun

    try:
        yield
    except (KeyboardInterrupt, StopRun) as error:
        raise Stopped(command) from error


def this_command() -> str:
    """Return the command line of this process, to paste it into a shell again."""
    return shlex.join(["fedaf", *sys.argv[1:]])


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

    def observer(self, *, note: str = "") -> "Observer":
        """Return an observer that shows the progress of one run, with a note after its title."""
        from fedaf.federation.observer import Observer
        from fedaf.reporting.progress import display

        return Observer() if self._quiet else display(self.console, verbose=self._verbose, note=note)

    def prepare(self, config: "Config", shared: "SharedData | None" = None) -> "Experiment":
        """Load the data and check the configuration, with a progress bar if many images must be read."""
        from fedaf.reporting.progress import reading
        from fedaf.runs.experiment import prepare

        with reading(Console(quiet=True) if self._quiet else self.console) as watch:
            return prepare(config, watch=watch, shared=shared)

    def say(self, text: str) -> None:
        """Print a line, unless the command is quiet."""
        if not self._quiet:
            print_line(self.console, text)

    def result(self, text: str) -> None:
        """Print a line of the result, which a quiet command prints too."""
        print_line(self.console, text)

    def say_trackers(self, config: "Config", folder: Path) -> None:
        """Print where the trackers of a run, or of the runs in a folder, keep it."""
        from fedaf.federation.trackers.registry import places

        for line in places(config.run.track, shlex.quote(str(folder))):
            self.say(f"Tracking with {line}")

    def show(self, table: "Table") -> None:
        """Print a table, in several parts if it is wider than the terminal."""
        from fedaf.reporting.fitting import fitted

        title, table.title = table.title, None
        if title:  # on a line of its own: a table would wrap it to its own width
            self.console.print(Text.from_markup(str(title), style="italic"), soft_wrap=True)
        for part in fitted(table, self.console.width):
            self.console.print(part)
            if part is not table:  # a narrow one has no border
                self.console.print()

    def announce(self, experiment: "Experiment") -> None:
        """Print the partition, the samples that the method leaves out, and the estimated time of a long run."""
        from fedaf.reporting import tables
        from fedaf.runs import estimate

        if self._quiet:
            return
        self._show_split(experiment)
        self._say_left_out(experiment)
        self._warn_of_noise(experiment)
        seconds = estimate.seconds(experiment)
        if seconds is not None and seconds >= _LONG_RUN:
            name, device = experiment.config.method_name, experiment.engine.device
            self.say(f"{name} will take about {tables.duration(seconds)} on {device}.")
            self._suggest_quick(seconds, experiment)

    def announce_all(self, jobs: "Sequence[Job]") -> None:
        """Print the partition of the first run, and the estimated time of all runs together and by method."""
        from fedaf.reporting import tables
        from fedaf.runs import estimate

        if self._quiet or not jobs:
            return
        first = jobs[0].experiment
        if jobs[0].rounds_done is None:
            self._show_split(first)
        for job in jobs:
            if job.experiment.config.run.seed == first.config.run.seed:
                self._say_left_out(job.experiment)
        pace = estimate.measure(first)  # all runs of a comparison have the same model
        by_method: dict[str, float] = {}
        unknown: dict[str, None] = {}
        for job in jobs:
            name, seconds = job.experiment.config.method_name, estimate.seconds(job.experiment, pace)
            if seconds is None:
                unknown[name] = None
            else:
                by_method[name] = by_method.get(name, 0.0) + seconds * job.left
        total = sum(by_method.values())
        if total < _LONG_RUN:
            return
        parts = ", ".join(f"{name} {tables.duration(seconds)}" for name, seconds in by_method.items())
        runs = "1 run" if len(jobs) == 1 else f"{len(jobs)} runs"
        rest = f" Unknown: {', '.join(unknown)}." if unknown else ""
        device = first.engine.device
        self.say(f"{runs} will take about {tables.duration(total)} on {device}: {parts}.{rest}")
        self._suggest_quick(total, first)

    def _show_split(self, experiment: "Experiment") -> None:
        from fedaf.reporting import tables

        if len(experiment.counts) <= _MOST_CLIENTS:
            self.show(tables.partition_table(experiment.counts))

    def _say_left_out(self, experiment: "Experiment") -> None:
        omitted = None if self._verbose else experiment.left_out  # with -v the log says it
        if omitted is not None and (sentence := omitted.sentence(experiment.config.method_name)):
            self.say(sentence)

    def _warn_of_noise(self, experiment: "Experiment") -> None:
        """Warn before a run whose noise will hide the data, judged by its largest class."""
        if experiment.method.privacy is None:
            return
        from fedaf.privacy.expectation import hopeless

        largest = max(max(counts) for counts in experiment.counts.values())
        if warning := hopeless(experiment.config.privacy, largest, experiment.method.options.ipc, experiment.task):
            self.say(warning)

    def _suggest_quick(self, seconds: float, experiment: "Experiment") -> None:
        if seconds > 3600 and experiment.config.preset != "quick":
            self.say("For a first look, --preset quick is much shorter.")

    def report(
        self,
        folder: Path,
        names: Sequence[str] = (),
        *,
        target: "Target | None" = None,
        metrics: Sequence[str] = (),
        against: str | None = None,
        draw: bool = True,
        picture: str = "png",
    ) -> None:
        """Print the results table of the run in a folder, or of several runs below it, and draw their figures.

        Args:
            folder: The run directory, or the folder of a comparison.
            names: The run directories in the folder of a comparison: one for each method and seed.
            target: Show the rounds to this target.
            metrics: Also show these metrics and tables.
            against: The method that the others are compared with; its differences are shown if there are several seeds.
            draw: Whether to draw figures into the folder.
            picture: The file format of the figures: png, svg or pdf.
        """
        from fedaf.reporting import figures, tables
        from fedaf.reporting.metrics import tables_of

        runs = [folder / name for name in names] or [folder]
        results = [figures.read_result(run) for run in runs]
        seeds = len({result["seed"] for result in results})
        files = self._draw(folder, runs, results, picture) if draw else []
        page = self._write_page(folder, runs, against) if draw else None
        self.show(tables.results_table(results, target=target))
        if by_domain := tables.domains_table(results):
            self.show(by_domain)
        for shown in tables_of(results, metrics):
            if isinstance(shown, str):
                print_line(self.console, shown)
            else:
                self.show(shown)
        if against is not None:
            files += self._report_differences(folder, results, against, metrics)
        of_method = (tables.personal_sentence, tables.reference_sentence)
        of_run = (
            tables.privacy_sentence,
            tables.disclosure_sentence,
            tables.audit_sentence,
            tables.overhead_sentence,
        )
        which = f"Seed {results[0]['seed']}: " if seeds > 1 else ""
        for result in (result for result in results if result["seed"] == results[0]["seed"]):
            said = [
                *(sentence(result) for sentence in of_method),
                *(_after(which, sentence(result)) for sentence in of_run),
            ]
            for line in filter(None, said):
                print_line(self.console, line)
        if draw:
            rest = "a directory per run" if names else "result.json"
            print_line(self.console, f"Results are in {folder}: {', '.join(files)}, and {rest}.")
            print_line(self.console, f"The report is in {page}.")
            if not names:
                whose = "" if results[0].get("global_model", True) else " --client NAME"
                self.say(f"Use the model with: fedaf predict {shlex.quote(str(folder))} IMAGES{whose}")

    def _write_page(self, folder: Path, runs: Sequence[Path], against: str | None) -> Path:
        from fedaf.reporting.html import REPORT, write_report

        return write_report(runs, folder / REPORT, against=against)

    def _draw(
        self, folder: Path, runs: Sequence[Path], results: Sequence[Mapping[str, Any]], picture: str
    ) -> list[str]:
        """Draw the figures of runs and return their names. Splits are drawn for each seed, images for the first."""
        from fedaf.federation.run_directory import PARTITION
        from fedaf.reporting import figures

        pictures: list[Path | None] = [figures.curves(results, folder / f"curves.{picture}")]
        seeds = [result["seed"] for result in results]
        several = len(set(seeds)) > 1
        for seed in dict.fromkeys(seeds):
            run = runs[seeds.index(seed)]
            is_known = (run / PARTITION).is_file()  # not over a network
            if is_known and not results[seeds.index(seed)].get("privacy"):  # exact counts stay out of pictures
                name = f"partition-seed{seed}" if several else "partition"
                pictures.append(figures.bubbles(run, folder / f"{name}.{picture}"))
        for run in (run for run, seed in zip(runs, seeds, strict=True) if seed == seeds[0]):
            method = "" if run == folder else f"-{run.relative_to(folder).parts[0]}"
            pictures.append(figures.gallery(run, folder / f"condensed{method}.{picture}"))
        return [picture.name for picture in pictures if picture]

    def _report_differences(
        self, folder: Path, results: Sequence[Mapping[str, Any]], against: str, metrics: Sequence[str]
    ) -> list[str]:
        """Print the paired differences over seeds, write the files for other programs, and return their names."""
        from fedaf.common.files import write_atomically
        from fedaf.reporting import differences

        measures = differences.measures(metrics)
        compared = differences.differences(results, against, measures)
        if table := differences.differences_table(compared):
            self.show(table)
            print_line(self.console, differences.EXPLANATION)
        elif compared:
            print_line(self.console, differences.ONE_SEED)
        write_atomically(folder / CSV, differences.as_csv(results))
        write_atomically(
            folder / SUMMARY, json.dumps(differences.as_json(results, compared, measures), indent=2) + "\n"
        )
        return [CSV, SUMMARY]
