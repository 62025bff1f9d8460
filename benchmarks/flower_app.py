"""FedAvg on the data and split of a fedaf run, as a Flower app. ``flower_simulation.py`` compares both.

A client trains as in Flower's documentation, with a DataLoader, or on tensors that are indexed directly, which is
faster. In other respects the choices are the faster ones for Flower: only the server evaluates, data are loaded once
per worker process, a client has as many threads as CPUs, and ``run_simulation`` starts faster than ``flwr run``, which
builds and submits an app first.
"""

import os
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

from fedaf.data.pixels import normalise
from fedaf.protocol import Key
from fedaf.runs.experiment import Experiment, reopen

#: Worker processes inherit the environment.
_FOLDER, _CPUS, _LOADER = "FEDAF_BENCHMARK_FOLDER", "FEDAF_BENCHMARK_CPUS", "FEDAF_BENCHMARK_LOADER"
_rounds: list[dict[str, Any]] = []

client_app, server_app = ClientApp(), ServerApp()


def _name(partition: int) -> str:
    return f"client-{partition}"


@cache
def _experiment() -> Experiment:
    return reopen(Path(os.environ[_FOLDER]))


@cache
def _samples(client: str) -> tuple[Tensor, Tensor]:
    shard = _experiment().partition.shards(_experiment().dataset)[client]
    return normalise(shard.images, _experiment().task.mean, _experiment().task.std), shard.labels


class _Shuffled(Sampler[int]):
    """A new order in each epoch. PyTorch's own sampler draws more often, so the sides would have different orders."""

    def __init__(self, count: int, draws: torch.Generator) -> None:
        self._count, self._draws = count, draws

    def __iter__(self) -> Iterator[int]:
        yield from torch.randperm(self._count, generator=self._draws).tolist()

    def __len__(self) -> int:
        return self._count


class _Indexed:
    """The batches of a DataLoader, without a DataLoader."""

    def __init__(self, images: Tensor, labels: Tensor, size: int, draws: torch.Generator) -> None:
        self._images, self._labels, self._size, self._draws = images, labels, size, draws

    def __iter__(self) -> Iterator[list[Tensor]]:
        for rows in torch.randperm(len(self._labels), generator=self._draws).split(self._size):
            yield [self._images[rows], self._labels[rows]]


def _model(arrays: ArrayRecord) -> nn.Module:
    model = _experiment().method.build_model(Key(0))
    model.load_state_dict(arrays.to_torch_state_dict())
    return model


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the global model on the client's samples for some epochs."""
    torch.set_num_threads(int(os.environ[_CPUS]))
    config, options = _experiment().config, _experiment().config.method
    client, number = _name(context.node_config["partition-id"]), message.content["config"]["server-round"]
    images, labels = _samples(client)
    model = _model(message.content["arrays"]).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    draws = Key(config.run.seed).derive("client", client, number, "fit").derive("order").torch()  # as fedaf draws it
    batches: Iterable[list[Tensor]] = _Indexed(images, labels, options.batch_size, draws)
    if int(os.environ[_LOADER]):
        batches = DataLoader(TensorDataset(images, labels), options.batch_size, sampler=_Shuffled(len(labels), draws))
    steps = 0
    for _ in range(options.local_epochs):
        for some_images, some_labels in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(some_images), some_labels).backward()
            optimizer.step()
            steps += 1
    metrics = {"num-examples": len(labels), "client": context.node_config["partition-id"], "steps": steps}
    reply = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(reply), reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds, and note what happened in each."""
    experiment, work = _experiment(), {}
    test = experiment.dataset.test
    images = normalise(test.images, experiment.task.mean, experiment.task.std)

    def count(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
        for metrics in (reply["metrics"] for reply in replies):
            work[_name(metrics["client"])] = [metrics["num-examples"], metrics["steps"]]
        return MetricRecord()

    @torch.no_grad()
    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        correct = _model(arrays).eval()(images).argmax(1) == test.labels
        accuracy = 100 * int(correct.sum()) / len(correct)
        if number:  # 0 is before the first round
            _rounds.append({"accuracy": accuracy, "work": dict(work), "ended": time.time()})
        return MetricRecord({"accuracy": accuracy})

    clients, config = len(experiment.partition.rows), experiment.config
    strategy = FedAvg(
        fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients, train_metrics_aggr_fn=count
    )
    initial = experiment.method.initial(Key(config.run.seed)).model
    strategy.start(grid, ArrayRecord(dict(initial)), num_rounds=config.run.rounds, evaluate_fn=evaluate)


def simulate(folder: Path, client_cpus: int, *, loader: bool = False) -> list[dict[str, Any]]:
    """Simulate the run of a fedaf run directory, and return its rounds."""
    os.environ.update({_FOLDER: str(folder), _CPUS: str(client_cpus), _LOADER: str(int(loader))})
    backend: dict[str, Any] = {
        "client_resources": {"num_cpus": client_cpus, "num_gpus": 0},
        "init_args": {"include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=len(_experiment().partition.rows), backend_config=backend)
    return _rounds
