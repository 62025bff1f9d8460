"""MLflow: the server or database of ``MLFLOW_TRACKING_URI``; unset, ``mlflow.db`` in the current directory."""

import os
import re
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import mlflow
from mlflow.entities import Metric, Param

from fedaf.federation.observer import RunInfo, Status
from fedaf.federation.trackers.tracker import Tracker, name_of

DEFAULT = "sqlite:///mlflow.db"
_STATUS: Mapping[Status, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker(Tracker):
    """Sends a run to the experiment of ``MLFLOW_EXPERIMENT_NAME``, or ``fedaf``, with the tag ``fedaf.run``."""

    @staticmethod
    def place(directory: str) -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or f"{DEFAULT} (MLFLOW_TRACKING_URI is not set)"

    def open(self, info: RunInfo) -> Collection[int]:
        self._client = client = mlflow.MlflowClient(None if mlflow.is_tracking_uri_set() else DEFAULT)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedaf")
        experiment = client.get_experiment_by_name(name)
        folder = client.create_experiment(name) if experiment is None else experiment.experiment_id
        tags = {"fedaf.run": info.run, **{f"version.{package}": known for package, known in info.versions.items()}}
        found = client.search_runs([folder], f"tags.`fedaf.run` = '{info.run}'", max_results=1)
        run = found[0] if found else client.create_run(folder, tags=tags, run_name=name_of(info))
        self._run = run.info.run_id
        client.update_run(self._run, status="RUNNING")
        params = [Param(k, str(v)[:6000]) for k, v in info.settings.items() if k not in run.data.params]
        for first in range(0, len(params), 100):  # MLflow's limits, as the 6,000 characters above
            client.log_batch(self._run, params=params[first : first + 100])
        return {metric.step for metric in client.get_metric_history(self._run, "round")}

    def send(self, round: int, numbers: Mapping[str, float], images: Mapping[str, Path]) -> None:
        for file in images.values():
            self._client.log_artifact(self._run, str(file), f"condensed/round-{round}")
        now = int(1000 * time.time())
        values = {re.sub(r"[^\w\-. :/]", "_", name): number for name, number in numbers.items()}
        metrics = [Metric(name, value, now, round) for name, value in values.items()]
        self._client.log_batch(self._run, sorted(metrics, key=lambda each: each.key == "round"))  # last: it is complete

    def close(self, status: Status) -> None:
        self._client.set_terminated(self._run, _STATUS[status])
