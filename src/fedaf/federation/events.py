"""The events of a run as lines of JSON, for programs that follow a run from outside (trackers, ``fedaf deploy``).

Each line has a ``time``, the name of the ``event``, and its fields. A run that ends writes one last event: ``ended``
if ``result.json`` is complete, ``failed`` (with ``message`` and ``code``) after a ``FedafError``, and none if it was
killed or interrupted.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaf.common.files import write_atomically
from fedaf.errors import FedafError
from fedaf.federation.observer import EVENT_NAMES, Observer

EVENTS = "events.jsonl"


class EventWriter(Observer):
    """Append every event of a run to ``events.jsonl``. Step-by-step progress is left out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._write("started", title=title, rounds=rounds, first_round=first_round, phases=phases, device=device)

    def round_started(self, round: int) -> None:
        self._write("round_started", round=round)

    def phase_started(self, name: str, clients: int) -> None:
        self._write("phase_started", name=name, clients=clients)

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self._write("client_failed", round=round, phase=phase, client=client, reason=reason)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self._write("round_ended", metrics=dict(metrics))

    def finished(self) -> None:
        """Write the last event of a run that played all its rounds."""
        self._write("ended")

    def failed(self, error: FedafError) -> None:
        """Write the last event of a run that stopped with an error."""
        self._write("failed", message=str(error), code=error.code)

    def rewind(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        """Make the events agree with the metrics of the rounds that a resumed run keeps.

        Events of later rounds are dropped. A ``round_ended`` that was never written is added.
        """
        kept: list[dict[str, Any]] = []
        for event in EventReader(self._directory).read():
            if event["event"] == "round_started" and event["round"] > len(metrics):
                break
            kept.append(event)
        write_atomically(self._directory / EVENTS, "".join(json.dumps(event) + "\n" for event in kept))
        ended = {event["metrics"]["round"] for event in kept if event["event"] == "round_ended"}
        for round in metrics:
            if round["round"] not in ended:
                self.round_ended(round)

    def _write(self, event: str, **fields: Any) -> None:
        with open(self._directory / EVENTS, "a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")


class EventReader:
    """Reads the events that were appended since the last call. An incomplete last line is left for the next call.

    A resumed run replaces the file (see ``EventWriter.rewind``); the reader then skips what it has already returned.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS
        self._inode, self._offset, self._last = 0, 0, 0.0

    def read(self) -> list[dict[str, Any]]:
        """Return the new events; none if there is no file yet."""
        try:
            with open(self._path, "rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                replaced = inode != self._inode
                file.seek(0 if replaced else self._offset)
                data = file.read()
                complete = data[: data.rfind(b"\n") + 1]
                self._inode, self._offset = inode, file.tell() - len(data) + len(complete)
        except FileNotFoundError:
            return []
        lines = [parsed for line in complete.splitlines() if (parsed := parse_line(line)) is not None]
        since = self._last if replaced else 0.0
        events = [line for line in lines if {"time", "event"} <= line.keys() and line["time"] > since]
        self._last = max((event["time"] for event in events), default=self._last)
        return events


def replay(event: Mapping[str, Any], observer: Observer) -> None:
    """Tell an observer about an event that was read from a file; unknown events and ``failed`` are ignored."""
    fields = {name: value for name, value in event.items() if name not in ("time", "event")}
    if event["event"] in EVENT_NAMES:
        getattr(observer, event["event"])(**fields)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; ``None`` for a line that was cut short when the run was killed."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
