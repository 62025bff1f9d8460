"""Run a small federation with trackers and die by SIGKILL at a named moment: track_and_die.py OUT SETTINGS_JSON MOMENT.

Moments in round 2: ``before the checkpoint``, ``before sending`` (to the first tracker), ``between trackers``,
``within a record`` (of TensorBoard, which is cut off), ``after sending``; and ``before closing``.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

import fedaf
from fedaf.federation import checkpoint
from fedaf.federation.observer import Status
from fedaf.federation.trackers.mlflow import MlflowTracker
from fedaf.federation.trackers.tensorboard import TensorBoardTracker


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    out, settings, moment = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    save, first, second, close = checkpoint.save, TensorBoardTracker.send, MlflowTracker.send, TensorBoardTracker.close

    def save_or_die(folder: Path, saved: checkpoint.Checkpoint, *, keep: int) -> None:
        if saved.server.round == 2 and moment == "before the checkpoint":
            die()
        save(folder, saved, keep=keep)

    def send_first(self: TensorBoardTracker, round: int, *what: object) -> None:
        if round == 2 and moment == "before sending":
            die()
        first(self, round, *what)
        if round == 2 and moment == "within a record":
            (file,) = (out / "tensorboard").iterdir()
            os.truncate(file, file.stat().st_size - 20)
            die()

    def send_second(self: MlflowTracker, round: int, *what: object) -> None:
        if round == 2 and moment == "between trackers":
            die()
        second(self, round, *what)
        if round == 2 and moment == "after sending":
            die()

    def close_or_die(self: TensorBoardTracker, status: Status) -> None:
        if moment == "before closing":
            die()
        close(self, status)

    checkpoint.save = save_or_die
    TensorBoardTracker.send, MlflowTracker.send, TensorBoardTracker.close = send_first, send_second, close_or_die
    fedaf.run(**settings, out=out)


if __name__ == "__main__":
    main()
