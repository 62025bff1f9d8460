"""Read back what trackers really wrote."""

import json
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import mlflow
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from wandb.proto.wandb_internal_pb2 import Record

from fedaf.federation.run_directory import read_metrics
from fedaf.federation.summary import flat

Numbers = dict[str, list[tuple[int, float]]]


def expected(run: Path) -> Numbers:
    """The numbers of ``metrics.jsonl`` by flat name: each round once, in order."""
    found: Numbers = {}
    for metrics in read_metrics(run):
        for name, number in flat(metrics).items():
            if number is not None:
                found.setdefault(name, []).append((metrics["round"], float(number)))
    return found


def as_float32(numbers: Numbers) -> Numbers:
    """The numbers as TensorBoard stores them."""
    return {
        name: [(step, struct.unpack("f", struct.pack("f", value))[0]) for step, value in values]
        for name, values in numbers.items()
    }


def tensorboard(run: Path) -> EventAccumulator:
    return EventAccumulator(str(run / "tensorboard"), {"scalars": 0, "images": 0, "tensors": 0}).Reload()


def scalars(run: Path) -> Numbers:
    """The numbers that TensorBoard shows, in the order in which they were written."""
    shown = tensorboard(run)
    return {
        name: [(event.step, event.value) for event in shown.Scalars(name)] for name in sorted(shown.Tags()["scalars"])
    }


def records(run: Path) -> list[int]:
    """The step of every record with metrics in the files of a run, whatever TensorBoard makes of them."""
    steps = []
    for file in sorted((run / "tensorboard").iterdir()):
        for raw in RawEventFileLoader(str(file)).Load():
            event = Event.FromString(raw)
            steps += [event.step for value in event.summary.value if value.tag == "round"]
    return steps


def status(run: Path) -> list[str]:
    return texts(run, "status")


def texts(run: Path, tag: str) -> list[str]:
    events = tensorboard(run).Tensors(f"{tag}/text_summary")
    return [event.tensor_proto.string_val[0].decode() for event in events]


def by_round(numbers: Numbers) -> Numbers:
    """The same numbers in the order of rounds; a step that is there twice stays so."""
    return {name: sorted(values) for name, values in numbers.items()}


def without_times(numbers: Numbers, names: Sequence[str] = ("seconds", "overhead", "client_seconds")) -> Numbers:
    return {name: values for name, values in numbers.items() if not name.startswith(tuple(names))}


def mlflow_runs(name: str = "fedaf") -> list["MlflowRun"]:
    """Every run of an experiment in MLflow's database."""
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(name)
    return [] if found is None else [MlflowRun(client, run) for run in client.search_runs([found.experiment_id])]


class MlflowRun:
    """What MLflow has of a run."""

    def __init__(self, client: "mlflow.MlflowClient", run: "mlflow.entities.Run") -> None:
        self._client, self.id, self.status = client, run.info.run_id, run.info.status
        self.name, self.params, self.tags = run.info.run_name, run.data.params, run.data.tags
        self._names = sorted(run.data.metrics)

    @property
    def numbers(self) -> Numbers:
        """Every number that was ever sent, by name, in the order of steps."""
        history = {name: self._client.get_metric_history(self.id, name) for name in self._names}
        return {name: sorted((metric.step, metric.value) for metric in found) for name, found in history.items()}

    def images(self) -> dict[str, bytes]:
        """The artifacts below ``condensed`` by path."""
        folder = Path(self._client.download_artifacts(self.id, "condensed"))
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.png")}


def wandb_numbers(folder: Path) -> Numbers:
    """Every number in the file of a W&B run, by name, in the order in which they were written."""
    found: Numbers = {}
    (file,) = folder.glob("*.wandb")
    deadline = time.monotonic() + 60
    while True:  # W&B's own process may still be writing
        records = [Record.FromString(record) for record in _wandb_records(file.read_bytes())]
        if any(record.HasField("exit") for record in records):
            break
        assert time.monotonic() < deadline, "the file has no end"
        time.sleep(0.2)
    for record in records:
        items = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append((items["_step"], float(value)))
    return dict(sorted(found.items()))


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of LevelDB's log format: blocks of 32 KiB, of parts with checksum, length, kind and content."""
    position, record = 7, b""  # after W&B's own head
    while position + 7 <= len(data):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""
