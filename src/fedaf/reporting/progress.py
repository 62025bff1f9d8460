"""Progress of a run: a live display in a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fedaf.federation.observer import Observer
from fedaf.reporting.tables import duration, per_cent


class _Clock:
    """The current round, and the time left at the pace so far."""

    def __init__(self) -> None:
        self.rounds = self.first = self.round = 1
        self._began = time.monotonic()

    def start(self, rounds: int, first_round: int) -> None:
        self.rounds, self.first, self.round = rounds, first_round, first_round
        self._began = time.monotonic()

    def left(self, rounds_done: float) -> str:
        done = rounds_done - (self.first - 1)
        if done <= 0:
            return "…"
        return duration((time.monotonic() - self._began) / done * (self.rounds - rounds_done))


@contextmanager
def reading(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of decoding image files, which happens once per folder: a bar in a terminal, a line elsewhere.

    Yields:
        A callback that takes the number of decoded files and the number of all files.
    """
    columns = (TextColumn("decoding images"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)

    def watch(done: int, total: int) -> None:
        if console.is_terminal:
            if not bar.task_ids:
                bar.add_task("", total=total)
                bar.start()
            bar.update(bar.task_ids[0], completed=done)
        elif not bar.task_ids:
            bar.add_task("", total=total)
            console.print(f"decoding {total} images, once", highlight=False)

    try:
        yield watch
    finally:
        if console.is_terminal and bar.task_ids:
            bar.stop()


class PlainProgress(Observer):
    """Print a line per round and per failed client; with ``verbose`` also per phase."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console, self._verbose, self._clock = console, verbose, _Clock()

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._clock.start(rounds, first_round)
        left = f"rounds {first_round} to {rounds}" if first_round <= rounds else "already finished"
        self._say(f"{title} on {device}: {left}")

    def round_started(self, round: int) -> None:
        self._clock.round = round

    def phase_started(self, name: str, clients: int) -> None:
        if self._verbose:
            self._say(f"round {self._clock.round}: {name}" + (f", {clients} clients" if clients else ""))

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self._say(f"round {round}: {client} failed ({phase}: {reason})")

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        done = metrics["round"]
        seconds = sum(metrics["seconds"].values())
        self._say(
            f"round {done}/{self._clock.rounds}: accuracy {per_cent(metrics['accuracy'])}, {duration(seconds)}, "
            f"{self._clock.left(done)} left"
        )

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveProgress(Observer):
    """Show a progress bar with round, phase, client, accuracy and time left; if ``verbose``, also a line per round."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console, self._verbose, self._clock = console, verbose, _Clock()
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._phase, self._phases_done, self._phases = "", 0, 1
        self._accuracy = ""

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._clock.start(rounds, first_round)
        self._phases = phases + 1  # and the work of the server
        self._progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}", markup=False),
            console=self._console,
        )
        self._task = self._progress.add_task(title, total=rounds, completed=first_round - 1, state=f"on {device}")
        self._progress.start()

    def round_started(self, round: int) -> None:
        self._clock.round, self._phases_done = round, 0

    def phase_started(self, name: str, clients: int) -> None:
        self._phase = name
        self._phases_done += 1
        self._show(f"{clients} clients" if clients else name, 0, 1)

    def progressed(self, who: str, done: int, total: int) -> None:
        self._show(who, done, total)

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self._console.print(f"round {round}: {client} failed ({phase}: {reason})", style="yellow", markup=False)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self._accuracy = per_cent(metrics["accuracy"])
        self._show(self._phase, 1, 1)
        if self._verbose:
            self._console.print(f"round {metrics['round']}: accuracy {self._accuracy}", highlight=False)

    def ended(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _show(self, who: str, done: int, total: int) -> None:
        if self._progress is None:
            return
        within = min(1.0, (self._phases_done - 1 + done / max(1, total)) / self._phases)
        rounds_done = self._clock.round - 1 + within
        parts = [f"round {self._clock.round}/{self._clock.rounds}", self._phase, *([who] if who != self._phase else [])]
        if self._accuracy:
            parts.append(self._accuracy)
        parts.append(f"{self._clock.left(rounds_done)} left")
        self._progress.update(self._task, completed=rounds_done, state=" · ".join(parts))
