"""What all built-in trackers have in common: each round is sent once, also when a run is killed and resumed."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedaf.federation.observer import Observer, RunInfo, Status
from fedaf.federation.summary import flat

_ROUNDS_WITH_IMAGES = 10  # about; all rounds of a long run would fill a disk


class Tracker(Observer):
    """An observer that sends a run to a tracker, which keeps it under the name ``RunInfo.run``.

    A resumed run continues there. ``open`` says which rounds the tracker has already; those are not sent again, and
    those that are missing are sent first. A round therefore has to be sent as a whole or not at all.
    """

    #: The last round that the tracker has.
    last = 0
    _known: Collection[int] = ()
    _every = 1
    _rounds = 0
    _images: Mapping[str, Path] = {}

    @staticmethod
    def place(directory: str) -> str:
        """Return where the tracker keeps the run in this directory, for people."""
        raise NotImplementedError

    def open(self, info: RunInfo) -> Collection[int]:
        """Begin or continue a run of the tracker, and return the rounds that it has already."""
        raise NotImplementedError

    def send(self, round: int, numbers: Mapping[str, float], images: Mapping[str, Path]) -> None:
        """Send a round: its metrics under flat names, which include ``round``, and a PNG for each client."""
        raise NotImplementedError

    def close(self, status: Status) -> None:
        """End the run of the tracker."""
        raise NotImplementedError

    def described(self, info: RunInfo) -> None:
        self._rounds, self._every = info.rounds, max(1, info.rounds // _ROUNDS_WITH_IMAGES)
        self._known = self.open(info)
        for metrics in info.history:
            self._images = info.images if metrics["round"] == len(info.history) else {}
            self.round_ended(metrics)

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        """Leave it to the other observers."""

    def images_shared(self, round: int, files: Mapping[str, Path]) -> None:
        self._images = files

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        round, images = metrics["round"], self._images
        self.last, self._images = round, {}
        if round in self._known:
            return
        shows_images = round in (1, self._rounds) or round % self._every == 0
        numbers = {name: float(number) for name, number in flat(metrics).items() if number is not None}
        self.send(round, numbers, images if shows_images else {})

    def closed(self, status: Status, reason: str) -> None:
        self.close(status)


def name_of(info: RunInfo) -> str:
    """Return the name under which a tracker lists a run."""
    return f"{info.title}, seed {info.settings['run.seed']}"


def settings_table(info: RunInfo) -> str:
    """Return the settings and versions of a run as a table in Markdown."""
    rows = [f"| {name} | {value} |" for name, value in {**info.settings, **info.versions}.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
