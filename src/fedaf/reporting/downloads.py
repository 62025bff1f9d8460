"""Progress of downloads: a bar in a terminal, plain lines elsewhere."""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from fedaf.data.fetch.download import DownloadObserver
from fedaf.reporting.tables import size

_LARGE = 64 << 20  # bytes; larger files print their progress


class PlainDownloads(DownloadObserver):
    """Print a line for each file, and a line for every tenth of a large one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what, self._total, self._tenths = "", 0, 0

    def began(self, what: str, done: int, total: int) -> None:
        self._what, self._total = what, total
        self._tenths = self._tenth(done)
        self.said(f"{what}: {size(total)}" + (f", {size(done)} already downloaded" if done else ""))

    def advanced(self, done: int) -> None:
        if self._total >= _LARGE and self._tenth(done) > self._tenths:
            self._tenths = self._tenth(done)
            self.said(f"{self._what}: {10 * self._tenths} %")

    def said(self, sentence: str) -> None:
        self._console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def _tenth(self, done: int) -> int:
        return 10 * done // max(1, self._total)


class LiveDownloads(PlainDownloads):
    """Show a progress bar for the current file, with the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        name = TextColumn("{task.description}", markup=False)
        columns = (name, BarColumn(bar_width=24), DownloadColumn(binary_units=True), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, transient=True)

    def began(self, what: str, done: int, total: int) -> None:
        self._bar.add_task(what, completed=done, total=total)
        self._bar.start()

    def advanced(self, done: int) -> None:
        for task in self._bar.task_ids:
            self._bar.update(task, completed=done)

    def ended(self) -> None:
        self._bar.stop()
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
