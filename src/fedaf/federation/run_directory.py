"""The directory of a run: everything needed to run it again, to resume it, and to report it."""

import fcntl
import io
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from torch import Tensor

from fedaf.common.files import write_atomically
from fedaf.errors import FedafError, InUse, UserError
from fedaf.federation.events import EVENTS, EventWriter, parse_line
from fedaf.federation.observer import ending
from fedaf.protocol import Exhibit

CONFIG, PARTITION, METRICS, RESULT = "config.toml", "partition.json", "metrics.jsonl", "result.json"
CONDENSED, INDEX = "condensed", "index.json"
#: Inside ``condensed``: a selection of the images of rounds 1, 2, 4, 8 and so on, one folder per round.
GALLERY = "gallery"
#: The samples per class and client, which an archive of finished runs keeps in place of ``partition.json``.
COUNTS = "counts.json"

_GALLERY_CLIENTS, _GALLERY_CLASSES, _GALLERY_IMAGES = 3, 10, 5

_LOCK = ".lock"


class RunDirectory:
    """A run directory that this process has locked, until it is closed or the process ends.

    As a context manager it is closed at the end of the block. A ``FedafError`` that leaves the block is recorded as the
    event ``failed``, and Ctrl-C or ``StopRun`` as ``interrupted``.

    Args:
        path: An existing directory.

    Raises:
        InUse: Another process has locked it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            what = f"another process is running in {path}; wait for it or choose another directory."
            raise InUse(what, code="FEDAF-RUN-LOCKED") from error

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Create and lock a directory for a new run.

        Raises:
            UserError: The path exists and is not an empty directory.
        """
        refuse_in_use(path)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, FedafError):
            EventWriter(self.path).failed(error)
        elif ending(error)[0] == "interrupted":
            EventWriter(self.path).interrupted()
        self.close()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def write(self, name: str, content: str) -> None:
        """Write a text file, atomically."""
        write_atomically(self.path / name, content)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Append the line of one round to ``metrics.jsonl``, and flush it to disk."""
        with open(self.path / METRICS, "a") as file:
            file.write(_json_line(metrics))
            file.flush()
            os.fsync(file.fileno())

    def rewind(self, last_round: int) -> None:
        """Drop the metrics and events of rounds after ``last_round``: a killed run may have logged one more round
        than it checkpointed.

        Raises:
            UserError: ``metrics.jsonl`` does not hold rounds 1 to ``last_round``.
        """
        kept = read_metrics(self.path)[:last_round]
        if [m.get("round") for m in kept] != list(range(1, last_round + 1)):
            what = f"{self.path / METRICS} does not hold rounds 1 to {last_round}"
            raise UserError(f"{what}; restore the file from a backup.", code="FEDAF-RUN-METRICS")
        if (self.path / METRICS).exists():
            self.write(METRICS, "".join(json.dumps(m) + "\n" for m in kept))
        EventWriter(self.path).rewind(kept)

    def write_exhibits(self, exhibits: Mapping[str, Exhibit], round: int) -> dict[str, Path]:
        """Write the images that clients shared in a round, one PNG per client with one row per class, and an index.

        They replace those of the round before. Rounds 1, 2, 4, 8 and so on also leave a selection in ``gallery``, which
        later rounds do not replace: a few images of each of ten classes, of the first three clients. Which images stay
        depends on nothing but the round, so a resumed run keeps the same ones.

        Returns:
            The PNG of each client, of all its images.
        """
        if not exhibits:
            return {}
        _write_sheets(self.path / CONDENSED, exhibits)
        if round & (round - 1) == 0:
            first = sorted(exhibits, key=lambda client: (len(client), client))[:_GALLERY_CLIENTS]
            some = {client: _some(exhibits[client]) for client in first}
            _write_sheets(self.path / CONDENSED / GALLERY / str(round), some)
        return {client: self.path / CONDENSED / f"{client}.png" for client in exhibits}


def _some(exhibit: Exhibit) -> Exhibit:
    """Return the images that the gallery keeps of a client."""
    return Exhibit(exhibit.classes[:_GALLERY_CLASSES], exhibit.images[:_GALLERY_CLASSES, :_GALLERY_IMAGES])


def _write_sheets(folder: Path, exhibits: Mapping[str, Exhibit]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    index = {}
    for client, exhibit in exhibits.items():
        _, columns, _, height, width = exhibit.images.shape
        index[client] = {"classes": exhibit.classes, "columns": columns, "height": height, "width": width}
        buffer = io.BytesIO()
        _sheet(exhibit.images).save(buffer, format="PNG")
        write_atomically(folder / f"{client}.png", buffer.getvalue())
    write_atomically(folder / INDEX, json.dumps(index))


def _json_line(metrics: Mapping[str, Any]) -> str:
    try:
        return json.dumps(metrics, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        what = f"the log of round {metrics.get('round')} cannot be written as JSON ({error})"
        advice = "give ServerState.with_log finite numbers, text, lists and dictionaries"
        raise UserError(f"{what}; {advice}.", code="FEDAF-METHOD-LOG") from error


def _sheet(images: Tensor) -> Image.Image:
    rows, columns, channels, height, width = images.shape
    spaced = torch.full((rows, columns, channels, height + 1, width + 1), 255, dtype=torch.uint8)
    spaced[..., :height, :width] = images
    whole = spaced.permute(0, 3, 1, 4, 2).reshape(rows * (height + 1), columns * (width + 1), channels).numpy()
    return Image.fromarray(whole[:-1, :-1, 0] if channels == 1 else whole[:-1, :-1, :3])


def refuse_in_use(path: Path) -> None:
    """Check that a path can become the directory of a new run.

    A directory that holds only the events of a run that failed before it started is accepted.

    Raises:
        UserError: The path is a file, or a directory that is not empty.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose another --out.", code="FEDAF-RUN-NOT-A-DIRECTORY")
    if path.exists() and any(found.name not in (_LOCK, EVENTS) for found in path.iterdir()):
        what = f"{path} is not empty; choose another --out, or continue a stopped run with --resume {path}."
        raise UserError(what, code="FEDAF-RUN-DIRECTORY-IN-USE")


def check_new(path: Path) -> None:
    """Check that a new run can be written to a path, before anything is computed. Nothing is left there.

    Raises:
        UserError: The path is in use.
        OSError: A directory cannot be created there, or no file can be written into it.
    """
    refuse_in_use(path)
    created = [each for each in (path, *path.parents) if not each.exists()]  # the innermost first
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    finally:
        for each in created:
            if each.is_dir():
                each.rmdir()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of each round; an incomplete last line (after a kill) is left out."""
    file, rounds = path / METRICS, []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        if (metrics := parse_line(line)) is None:
            break
        rounds.append(metrics)
    return rounds
