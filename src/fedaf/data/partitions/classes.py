"""Split by classes: each client has the same number of classes (quantity-based label skew, Li et al., ICDE 2022)."""

from typing import Any

import numpy as np

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind, numbered
from fedaf.protocol import Key, UserError


def classes_per_client(labels: np.ndarray, clients: int, classes: int, key: Key) -> Partition:
    """Give ``classes`` random classes to each client and split each class equally among its clients.

    Every class has clients, and their number differs by at most one between classes.

    Raises:
        UserError: If there are fewer classes than that, some class would have no client, or too few samples.
    """
    present = np.unique(labels)
    if classes > len(present):
        what = f"partition.classes_per_client is {classes}, but the training data have {len(present)} classes"
        raise UserError(f"{what}; lower it.", code="FEDAF-PARTITION-CLASSES")
    if clients * classes < len(present):
        what = f"{clients} clients with {classes} classes each cannot have all {len(present)} classes"
        raise UserError(f"{what}; raise partition.classes_per_client or --clients.", code="FEDAF-PARTITION-CLASSES")
    rng = key.numpy()
    owners = _deal(len(present), clients, classes, rng)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for number, label in enumerate(present):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < len(owners[number]):
            what = f"class {label} has {len(rows)} training samples for {len(owners[number])} clients"
            remedy = "lower --clients or partition.classes_per_client"
            raise UserError(f"{what}; {remedy}.", code="FEDAF-PARTITION-TOO-FEW")
        for client, part in zip(owners[number], np.array_split(rows, len(owners[number])), strict=True):
            parts[client].append(part)
    return numbered([np.concatenate(part) for part in parts])


def _deal(classes: int, clients: int, each: int, rng: np.random.Generator) -> list[list[int]]:
    """Return the clients of each class: every client takes the classes with the fewest clients, ties at random."""
    owners: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        order = rng.permutation(classes)
        for number in order[np.argsort([len(owners[number]) for number in order], kind="stable")][:each]:
            owners[number].append(client)
    return owners


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    return classes_per_client(data.train.labels.numpy(), options.clients, options.classes_per_client, key)


CLASSES = PartitionKind(("clients", "classes_per_client"), _split)
