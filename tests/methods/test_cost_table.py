"""The paper's communication table, from the messages themselves: MiB a client uploads in a round, IPC 50."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedaf.data.partitions.dirichlet import dirichlet
from fedaf.data.registry import DATASETS
from fedaf.methods.averaging import AveragingOptions
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.methods.fedavg import FedAvg
from fedaf.privacy.copy_audit import rounded_audit
from fedaf.protocol import Architecture, Key, Payload, Task
from support.zoo import build

MIB = 2**20
CLIENTS, IPC, SEEDS = 10, 50, 20

SAMPLES = {"fashionmnist": (60_000, 10), "cifar10": (50_000, 10), "cifar100": (50_000, 100)}
IMAGE_BYTES = {"fashionmnist": 28 * 28, "cifar10": 3 * 32 * 32, "cifar100": 3 * 32 * 32}
FEDAF = {
    ("fashionmnist", 0.02): 0.06,
    ("fashionmnist", 0.05): 0.09,
    ("fashionmnist", 0.1): 0.14,
    ("cifar10", 0.02): 0.22,
    ("cifar10", 0.05): 0.31,
    ("cifar10", 0.1): 0.44,
    ("cifar100", 0.02): 1.93,
    ("cifar100", 0.05): 2.46,
    ("cifar100", 0.1): 3.22,
}
FEDAVG = {"convnet": 1.46, "resnet18": 42.65}


def task_of(dataset: str) -> Task:
    entry = DATASETS.find(dataset)
    return Task(dataset, *entry.shape, entry.num_classes, entry.mean, entry.std)


@dataclass(frozen=True)
class Replies:
    """What a client with these classes uploads in FedAF's two phases; only the sizes are of interest."""

    method: FedAF

    def knowledge(self, classes: list[int]) -> Payload:
        num_classes = self.method.task.num_classes
        rows = torch.full((len(classes), num_classes), 1 / num_classes)
        return Payload({"classes": torch.tensor(classes, dtype=torch.int64), "mean_logits": rows, "soft_labels": rows})

    def condense(self, classes: list[int]) -> Payload:
        owned = torch.tensor(classes, dtype=torch.int64)
        images = torch.zeros(len(classes), self.method.options.ipc, *self.method.task.image_shape, dtype=torch.uint8)
        schema = self.method.phases[1].schema(Payload({"classes": owned}))
        measured = {name: number.kind(0.12345678901234567) for name, number in schema.scalars.items()}
        return Payload({"classes": owned, "images": images}, measured | rounded_audit(measured))

    def nbytes(self, classes: list[int]) -> int:
        return self.knowledge(classes).nbytes + self.condense(classes).nbytes


def replies_for(dataset: str) -> Replies:
    task = task_of(dataset)
    make_model = partial(build, "convnet", task, depth=3, width=128, norm="batch")
    return Replies(FedAF(FedAFOptions(ipc=IPC), task, Architecture(make_model)))


def classes_of_clients(dataset: str, alpha: float, seed: int) -> list[list[int]]:
    """The classes each client condenses, in a split of labels with the data set's class counts."""
    samples, classes = SAMPLES[dataset]
    labels = np.repeat(np.arange(classes), samples // classes)
    split = dirichlet(labels, CLIENTS, alpha=alpha, key=Key(seed).derive("partition"))
    method = replies_for(dataset).method
    return [method.condensed_classes(counts) for counts in split.counts(labels, classes).values()]


@pytest.mark.parametrize("dataset", SAMPLES)
def test_the_catalog_and_the_paper_speak_of_the_same_data(dataset):
    entry = DATASETS.find(dataset)
    assert entry.num_classes == SAMPLES[dataset][1]
    assert np.prod(entry.shape) == IMAGE_BYTES[dataset]


@pytest.mark.parametrize("dataset", SAMPLES)
def test_one_clients_replies_keep_to_the_schemas_of_the_real_phases(dataset):
    replies = replies_for(dataset)
    knowledge, condense = replies.method.phases
    for classes in ([], [3], [0, 4, 9]):
        knowledge.schema(Payload()).validate(replies.knowledge(classes))
        asked = Payload({"classes": torch.tensor(classes, dtype=torch.int64)})
        condense.schema(asked).validate(replies.condense(classes))


@pytest.mark.parametrize("dataset", SAMPLES)
def test_upload_grows_by_the_same_bytes_with_every_class(dataset):
    replies, (_, num_classes) = replies_for(dataset), SAMPLES[dataset]
    nothing = replies.nbytes([])
    by_class = 2 * 8 + 2 * 4 * num_classes + IPC * IMAGE_BYTES[dataset]
    for classes in ([0], [1, 2], list(range(10))):
        assert replies.nbytes(classes) == nothing + len(classes) * by_class


@pytest.mark.parametrize(("dataset", "alpha"), FEDAF)
def test_upload_of_fedaf_is_that_of_the_paper(dataset, alpha):
    replies = replies_for(dataset)
    nothing, one = replies.nbytes([]), replies.nbytes([0])
    held = [len(classes) for seed in range(SEEDS) for classes in classes_of_clients(dataset, alpha, seed)]
    mean = nothing + float(np.mean(held)) * (one - nothing)
    assert mean / MIB == pytest.approx(FEDAF[dataset, alpha], rel=0.15)


def fedavg(model: str) -> tuple[nn.Module, Payload]:
    """The paper's 381,450 parameters are those of a ConvNet for 64x64 images."""
    task = Task("domainnet", 3, 64, 64, 10, mean=(0.5,) * 3, std=(0.25,) * 3)
    make_model = partial(build, model, task, depth=3, width=128, norm="batch")
    method = FedAvg(AveragingOptions(), task, Architecture(make_model))
    server = method.initial(Key(0))
    reply = Payload(server.model, {"samples": 5000, "loss_ce": 0.5})
    method.phases[0].schema(method.phases[0].ask(server, "client-0")).validate(reply)
    return method.build_model(Key(0)), reply


@pytest.mark.parametrize("model", FEDAVG)
def test_upload_of_fedavg_is_that_of_the_paper(model):
    network, reply = fedavg(model)
    parameters = sum(p.numel() * p.element_size() for p in network.parameters())
    assert round(parameters / MIB, 2) == FEDAVG[model]
    assert parameters < reply.nbytes < 1.01 * parameters  # statistics of BatchNorm travel too
