"""Observers that tests name as ``support.observers:Name``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaf.federation.observer import Observer, RunInfo, Status, StopRun


class Broken(Observer):
    """Raises after the first round."""

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        raise OSError("the disk of the tracker is full")


class Stopping(Observer):
    """Stops a run after its first round."""

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        raise StopRun("enough")


class Needy(Observer):
    def __init__(self, server: str) -> None:
        self.server = server


class Unready(Observer):
    def __init__(self) -> None:
        raise RuntimeError("no licence")


class Diary(Observer):
    """Writes what it learns to ``diary.txt`` in the run directory."""

    file: Path

    def described(self, info: RunInfo) -> None:
        self.file = info.directory / "diary.txt"
        self._write(f"{info.title}, {len(info.history)} rounds done, seed {info.settings['run.seed']}")

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        self._write(f"round {metrics['round']}")

    def closed(self, status: Status, reason: str) -> None:
        self._write(f"{status} {reason}".strip())

    def _write(self, line: str) -> None:
        with self.file.open("a") as file:
            file.write(line + "\n")
