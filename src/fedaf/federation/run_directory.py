"""The record of a run on disk: re-runnable, resumable, and all that reports are made from."""

import fcntl
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from fedaf.common.files import write_atomically
from fedaf.errors import InUse
from fedaf.protocol import Exhibit, UserError

CONFIG, PARTITION, METRICS, RESULT = "config.toml", "partition.json", "metrics.jsonl", "result.json"
CONDENSED, INDEX = "condensed", "index.json"


class RunDirectory:
    """A directory that this process holds for itself until it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise InUse(f"{path} is in use by another run that is still going on.") from error

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """A new directory; one that holds anything is refused."""
        refuse_in_use(path)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    def close(self) -> None:
        os.close(self._lock)

    def write(self, name: str, content: str) -> None:
        write_atomically(self.path / name, content)

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        with open(self.path / METRICS, "a") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def rewind_metrics(self, last_round: int) -> None:
        """Forget rounds after ``last_round``: a killed run may have logged one it had not checkpointed."""
        kept = read_metrics(self.path)[:last_round]
        if [m.get("round") for m in kept] != list(range(1, last_round + 1)):
            raise UserError(f"{self.path / METRICS} is damaged: it does not hold rounds 1 to {last_round}.")
        self.write(METRICS, "".join(json.dumps(m) + "\n" for m in kept))

    def write_exhibits(self, exhibits: Mapping[str, Exhibit]) -> None:
        """What clients shared, as pictures without loss: a sheet each, a row for each class, a pixel between images;
        an index says which classes they are."""
        if not exhibits:
            return
        folder = self.path / CONDENSED
        folder.mkdir(exist_ok=True)
        index = {}
        for client, exhibit in exhibits.items():
            _, columns, _, height, width = exhibit.images.shape
            index[client] = {"classes": exhibit.classes, "columns": columns, "height": height, "width": width}
            buffer = io.BytesIO()
            _sheet(exhibit.images).save(buffer, format="PNG")
            write_atomically(folder / f"{client}.png", buffer.getvalue())
        write_atomically(folder / INDEX, json.dumps(index))


def _sheet(images: Tensor) -> Image.Image:
    rows, columns, channels, height, width = images.shape
    spaced = torch.full((rows, columns, channels, height + 1, width + 1), 255, dtype=torch.uint8)
    spaced[..., :height, :width] = images
    whole = spaced.permute(0, 3, 1, 4, 2).reshape(rows * (height + 1), columns * (width + 1), channels).numpy()
    return Image.fromarray(whole[:-1, :-1, 0] if channels == 1 else whole[:-1, :-1, :3])


def refuse_in_use(path: Path) -> None:
    """Raise ``UserError`` for a path that holds anything a new run could spoil."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; choose another --out.")
    if path.exists() and any(path.iterdir()):
        raise UserError(f"{path} is in use; choose another --out, or go on with --resume {path}.")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rounds of a run; a last line cut short by a kill is left out."""
    try:
        lines = (path / METRICS).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    rounds = []
    for line in lines:
        try:
            metrics = json.loads(line)
        except json.JSONDecodeError:
            break
        if not isinstance(metrics, dict):
            break
        rounds.append(metrics)
    return rounds
