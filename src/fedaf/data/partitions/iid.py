"""IID split: equal parts of a random order."""

from typing import Any

import numpy as np

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind, check_enough_samples, numbered
from fedaf.protocol import Key


def iid(labels: np.ndarray, clients: int, key: Key) -> Partition:
    """Split a random order of the samples into equal parts."""
    check_enough_samples(labels, clients)
    return numbered(np.array_split(key.numpy().permutation(len(labels)), clients))


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    return iid(data.train.labels.numpy(), options.clients, key)


IID = PartitionKind(("clients",), _split)
