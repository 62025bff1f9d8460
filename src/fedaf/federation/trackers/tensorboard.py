"""TensorBoard: event files below the run directory."""

import time
from collections.abc import Collection, Mapping
from pathlib import Path

from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from torch.utils.tensorboard.summary import text

from fedaf.federation.observer import RunInfo, Status
from fedaf.federation.trackers.tracker import Tracker, settings_table


class TensorBoardTracker(Tracker):
    """Writes ``tensorboard/`` into the run directory. A round is one record, so a killed run leaves no half of it."""

    @staticmethod
    def place(directory: str) -> str:
        return f"tensorboard/ in the run directory; look at it with: tensorboard --logdir {directory}"

    def open(self, info: RunInfo) -> Collection[int]:
        folder, last = str(info.directory / "tensorboard"), len(info.history)
        self._writer = EventFileWriter(folder)  # a new file, after those from before a resume
        written = EventAccumulator(folder, {"scalars": 0}).Reload()
        known = {event.step for event in written.Scalars("round")} if "round" in written.Tags()["scalars"] else set()
        if any(round > last for round in known):  # more than the checkpoint has: TensorBoard forgets them
            self._write(last + 1, session_log=SessionLog(status=SessionLog.START))
        if "settings/text_summary" not in written.Tags()["tensors"]:
            self._write(0, summary=text("settings", settings_table(info)))
        return {round for round in known if round <= last}

    def send(self, round: int, numbers: Mapping[str, float], images: Mapping[str, Path]) -> None:
        values = [Summary.Value(tag=name, simple_value=number) for name, number in numbers.items()]
        for client, file in images.items():
            with Image.open(file) as png:
                image = Summary.Image(width=png.width, height=png.height, encoded_image_string=file.read_bytes())
            values.append(Summary.Value(tag=f"condensed/{client}", image=image))
        self._write(round, summary=Summary(value=values))

    def close(self, status: Status) -> None:
        self._write(self.last, summary=text("status", status))
        self._writer.close()

    def _write(self, step: int, **what: object) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=step, **what))
        self._writer.flush()
