"""Progress of a run: a live display in a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedaf.federation.observer import Observer
from fedaf.reporting.tables import duration, per_cent

_BAR, _SHORT_BAR, _WIDE = 24, 12, 100  # widths of the bar, and the width of a terminal for the long one


@contextmanager
def reading(console: Console) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of decoding image files, which happens once per folder: a bar in a terminal, a line elsewhere.

    Yields:
        A callback that takes the number of decoded files and the number of all files.
    """
    columns = (TextColumn("decoding images"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True)

    def watch(done: int, total: int) -> None:
        if not bar.task_ids:
            bar.add_task("", total=total)
            if console.is_terminal:
                bar.start()
            else:
                console.print(f"decoding {total} images, once", highlight=False)
        bar.update(bar.task_ids[0], completed=done)

    try:
        yield watch
    finally:
        if console.is_terminal and bar.task_ids:
            bar.stop()


def display(console: Console, *, verbose: bool = False, note: str = "") -> Observer:
    """Return an observer that shows the progress of a run: a bar where one can be drawn, else a line per round.

    A notebook can draw a bar if ipywidgets is installed. The note comes after the title of the run.
    """
    notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    return (LiveProgress if console.is_terminal or notebook else PlainProgress)(console, verbose=verbose, note=note)


class PlainProgress(Observer):
    """Print a line per round and per failed client; with ``verbose`` also per phase. ``note`` follows the title."""

    def __init__(self, console: Console, *, verbose: bool = False, note: str = "") -> None:
        self._console, self._verbose, self._note = console, verbose, note
        self._rounds = self._first = self._round = 1
        self._began = time.monotonic()

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._start(rounds, first_round)
        left = f"rounds {first_round} to {rounds}" if first_round <= rounds else "already finished"
        self._say(f"{self._titled(title)} on {device}: {left}")

    def round_started(self, round: int) -> None:
        self._round = round

    def phase_started(self, name: str, clients: int) -> None:
        if self._verbose:
            self._say(f"round {self._round}: {name}" + (f", {clients} clients" if clients else ""))

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self._say(f"round {round}: {client} failed ({phase}: {reason})", style="yellow")

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        done, took = metrics["round"], duration(sum(metrics["seconds"].values()))
        accuracy = per_cent(metrics["accuracy"])
        self._say(f"round {done}/{self._rounds}: accuracy {accuracy}, {took}, {self._left(done)} left")

    def _titled(self, title: str) -> str:
        return f"{title}, {self._note}" if self._note else title

    def _start(self, rounds: int, first_round: int) -> None:
        self._rounds, self._first, self._round = rounds, first_round, first_round
        self._began = time.monotonic()

    def _left(self, rounds_done: float) -> str:
        """The time left at the pace so far."""
        done = rounds_done - (self._first - 1)
        if done <= 0:
            return "…"
        return duration((time.monotonic() - self._began) / done * (self._rounds - rounds_done))

    def _say(self, text: str, style: str | None = None) -> None:
        self._console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


class LiveProgress(PlainProgress):
    """Show a progress bar with round, phase, client, accuracy and time left; if ``verbose``, also a line per round.

    What does not fit into the width of the terminal is left out as a whole, the least important part first.
    """

    def __init__(self, console: Console, *, verbose: bool = False, note: str = "") -> None:
        super().__init__(console, verbose=verbose, note=note)
        title, state = TextColumn("{task.description}", style="bold", markup=False), "{task.fields[state]}"
        bar = BarColumn(bar_width=_BAR if console.width >= _WIDE else _SHORT_BAR)
        self._bar = Progress(title, bar, TextColumn(state, markup=False), console=console)
        self._room = console.width - (bar.bar_width or 0) - 2  # for the title and the state, without the gaps
        self._phase, self._phases_done, self._phases, self._accuracy = "", 0, 1, ""

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._start(rounds, first_round)
        self._phases = phases + 1  # and the work of the server
        shown = _shortened(self._titled(title), 2 * self._room // 5)
        self._room -= cell_len(shown)
        self._bar.add_task(shown, total=rounds, completed=first_round - 1, state=_fitting([f"on {device}"], self._room))
        self._bar.start()

    def round_started(self, round: int) -> None:
        self._round, self._phases_done = round, 0

    def phase_started(self, name: str, clients: int) -> None:
        self._phase = name
        self._phases_done += 1
        self.progressed(f"{clients} clients" if clients else name, 0, 1)

    def progressed(self, who: str, done: int, total: int) -> None:
        within = min(1.0, (self._phases_done - 1 + done / max(1, total)) / self._phases)
        rounds_done = self._round - 1 + within
        who = "" if who == self._phase else who
        left = f"{self._left(rounds_done)} left"
        shown = [f"round {self._round}/{self._rounds}", self._phase, who, self._accuracy, left]
        state = _fitting(shown, self._room, dropped=(2, 1, 3, 4))
        for task in self._bar.task_ids:
            self._bar.update(task, completed=rounds_done, state=state)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self._accuracy = per_cent(metrics["accuracy"])
        self.progressed(self._phase, 1, 1)
        if self._verbose:
            self._say(f"round {metrics['round']}: accuracy {self._accuracy}")

    def ended(self) -> None:
        self._bar.stop()


def _fitting(parts: Sequence[str], room: int, dropped: Sequence[int] = ()) -> str:
    """Join the parts that are not empty; leave out those with the numbers ``dropped``, in this order, until it fits."""
    kept = list(parts)
    for number in dropped:
        if cell_len(" · ".join(filter(None, kept))) <= room:
            break
        kept[number] = ""
    return " · ".join(filter(None, kept))


def _shortened(title: str, room: int) -> str:
    """Cut a title that is too long for its room."""
    return title if cell_len(title) <= room else f"{set_cell_size(title, max(0, room - 1)).rstrip()}…"
