"""The events of a run as lines of JSON, for programs that follow a run from outside (trackers, ``fedaf deploy``).

Each line has a ``time``, the name of the ``event``, and its fields. A run that ends writes one last event: ``ended``
if ``result.json`` is complete, ``failed`` (with ``message`` and ``code``) after a ``FedafError``, ``interrupted`` after
Ctrl-C, and none if it was killed. Paths are relative to the run directory.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaf.common.files import write_atomically
from fedaf.errors import FedafError
from fedaf.federation.observer import EVENT_NAMES, Observer, RunInfo, Status

EVENTS = "events.jsonl"


class EventWriter(Observer):
    """Append every event of a run to ``events.jsonl``. Step-by-step progress is left out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def described(self, info: RunInfo) -> None:
        known = {"run": info.run, "title": info.title, "rounds": info.rounds}
        self._write("described", **known, settings=dict(info.settings), versions=dict(info.versions))

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self._write("started", title=title, rounds=rounds, first_round=first_round, phases=phases, device=device)

    def round_started(self, round: int) -> None:
        self._write("round_started", round=round)

    def phase_started(self, name: str, clients: int) -> None:
        self._write("phase_started", name=name, clients=clients)

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self._write("client_failed", round=round, phase=phase, client=client, reason=reason)

    def images_shared(self, round: int, files: Mapping[str, Path]) -> None:
        named = {client: str(file.relative_to(self._directory)) for client, file in files.items()}
        self._write("images_shared", round=round, files=named)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self._write("round_ended", metrics=dict(metrics))

    def finished(self) -> None:
        """Write the last event of a run that played all its rounds."""
        self._write("ended")

    def failed(self, error: FedafError) -> None:
        """Write the last event of a run that stopped with an error."""
        self._write("failed", message=str(error), code=error.code)

    def interrupted(self) -> None:
        """Write the last event of a run that was stopped and can be resumed."""
        self._write("interrupted")

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


_LAST: Mapping[str, Status] = {"ended": "finished", "failed": "failed", "interrupted": "interrupted"}


def replay(event: Mapping[str, Any], observer: Observer, directory: Path) -> None:
    """Tell an observer about an event that was read from the file of a run directory; unknown events are ignored.

    The last event of a run becomes ``ended`` and ``closed``.
    """
    name = event["event"]
    fields = {key: value for key, value in event.items() if key not in ("time", "event")}
    if name in _LAST:
        observer.ended()
        observer.closed(_LAST[name], fields.get("message", ""))
    elif name == "described":
        observer.described(RunInfo(directory=directory, **fields))
    elif name == "images_shared":
        observer.images_shared(fields["round"], {client: directory / file for client, file in fields["files"].items()})
    elif name in EVENT_NAMES:
        getattr(observer, name)(**fields)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; ``None`` for a line that was cut short when the run was killed."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
