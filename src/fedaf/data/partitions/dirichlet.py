"""The balanced Dirichlet split: label skew controlled by one concentration parameter."""

from typing import Any

import numpy as np

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind, check_enough_samples, numbered
from fedaf.protocol import Key, UserError

_USES = ("clients", "alpha", "min_size", "max_redraws")


def dirichlet(
    labels: np.ndarray, clients: int, *, alpha: float, key: Key, min_size: int = 10, max_redraws: int = 1000
) -> Partition:
    """Split each class by Dirichlet(alpha) over the clients that have less than an equal share so far.

    Args:
        labels: The label of each sample.
        clients: Number of clients.
        alpha: Concentration; smaller is more skewed.
        key: Key of the random numbers.
        min_size: Draw again until every client has this many samples.
        max_redraws: Give up after this many rejected draws.

    Raises:
        UserError: If no draw gives every client ``min_size`` samples.
    """
    check_enough_samples(labels, clients, max(1, min_size), "partition.min_size")
    rng = key.numpy()
    for redraws in range(max_redraws + 1):
        drawn = _draw(labels, clients, alpha, rng)
        if min(len(rows) for rows in drawn) >= min_size:
            return numbered(drawn, redraws)
    what = f"no split of {len(labels)} samples over {clients} clients with alpha {alpha:g} gave each {min_size}"
    remedy = "raise partition.alpha, or lower partition.clients or partition.min_size"
    raise UserError(f"{what} in {max_redraws} redraws; {remedy}.", code="FEDAF-PARTITION-REDRAWS")


def _draw(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    share = len(labels) / clients
    drawn: list[list[np.ndarray]] = [[] for _ in range(clients)]
    counts = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        is_open = counts < share
        weights = rng.dirichlet(np.full(clients, alpha)) * is_open
        if weights.sum() <= 0:  # all weight is on clients that are full: one random open client gets the class
            weights = np.zeros(clients)
            weights[rng.choice(np.flatnonzero(is_open))] = 1.0
        cuts = np.floor(np.cumsum(weights / weights.sum())[:-1] * len(rows) + 1e-9).astype(np.int64)
        for client, part in enumerate(np.split(rows, cuts)):
            drawn[client].append(part)
            counts[client] += len(part)
    return [np.concatenate(parts) for parts in drawn]


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    return dirichlet(data.train.labels.numpy(), key=key, **{name: getattr(options, name) for name in _USES})


DIRICHLET = PartitionKind(_USES, _split)
