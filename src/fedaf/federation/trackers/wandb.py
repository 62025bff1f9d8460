"""Weights & Biases, set up by its own environment variables: ``WANDB_PROJECT``, ``WANDB_MODE=offline``, ..."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import wandb

from fedaf.federation.observer import RunInfo, Status
from fedaf.federation.trackers.tracker import Tracker, name_of


class WandbTracker(Tracker):
    """Sends a run to W&B under its own name as id.

    Offline, W&B cannot continue a run: every resume then writes a directory of its own with all rounds from the first.
    """

    @staticmethod
    def place(directory: str) -> str:
        return f"project {os.environ.get('WANDB_PROJECT', 'fedaf')}, mode {os.environ.get('WANDB_MODE', 'online')}"

    def open(self, info: RunInfo) -> Collection[int]:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedaf"),
            id=info.run,
            resume="allow",
            name=name_of(info),
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
        self._run.config.update({**info.settings, "versions": dict(info.versions)}, allow_val_change=True)
        return range(self._run.step)  # the next step of a run that is continued

    def send(self, round: int, numbers: Mapping[str, float], images: Mapping[str, Path]) -> None:
        pictures = {f"condensed/{client}": wandb.Image(str(file)) for client, file in images.items()}
        self._run.log({**numbers, **pictures}, step=round, commit=True)

    def close(self, status: Status) -> None:
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "finished" else 1)
