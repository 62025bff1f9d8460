"""What happened in a run and when, as lines of JSON: the stream that a network's observer and trackers read."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaf.federation.observer import Observer

EVENTS = "events.jsonl"


class EventWriter(Observer):
    """Append every event of a run to ``events.jsonl``. Step-by-step progress is left out."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self.write("started", title=title, rounds=rounds, first_round=first_round, phases=phases, device=device)

    def round_started(self, round: int) -> None:
        self.write("round_started", round=round)

    def phase_started(self, name: str, clients: int) -> None:
        self.write("phase_started", name=name, clients=clients)

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self.write("client_failed", round=round, phase=phase, client=client, reason=reason)

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self.write("round_ended", metrics=dict(metrics))

    def ended(self) -> None:
        self.write("ended")

    def write(self, event: str, **fields: Any) -> None:
        """Append one event with the current time."""
        with open(self._path, "a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")


class EventReader:
    """Read the events that were appended since the last call; a line that is not complete yet is left for the next."""

    def __init__(self, directory: Path) -> None:
        self._path, self._offset = directory / EVENTS, 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


def replay(event: Mapping[str, Any], observer: Observer) -> None:
    """Tell an observer about an event that was read from a file."""
    fields = {name: value for name, value in event.items() if name not in ("time", "event")}
    match event["event"]:
        case "round_ended":
            observer.round_ended(fields["metrics"])
        case "started" | "round_started" | "phase_started" | "client_failed" | "ended" as name:
            getattr(observer, name)(**fields)
