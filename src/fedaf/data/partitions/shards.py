"""Split by shards (McMahan et al., 2017): pieces of the samples sorted by label."""

from typing import Any

import numpy as np

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind, check_enough_samples, numbered
from fedaf.protocol import Key


def shards_per_client(labels: np.ndarray, clients: int, shards: int, key: Key) -> Partition:
    """Sort by label, cut into ``clients * shards`` pieces and give ``shards`` random pieces to each client."""
    check_enough_samples(labels, clients, shards, "partition.shards_per_client")
    pieces = clients * shards
    rng = key.numpy()
    shuffled = rng.permutation(len(labels))
    cut = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], pieces)
    dealt = rng.permutation(pieces).reshape(clients, shards)
    return numbered([np.concatenate([cut[i] for i in hand]) for hand in dealt])


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    return shards_per_client(data.train.labels.numpy(), options.clients, options.shards_per_client, key)


SHARDS = PartitionKind(("clients", "shards_per_client"), _split)
