"""Split by size: clients with log-normal numbers of samples and the same label distribution (quantity skew)."""

from typing import Any

import numpy as np

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind, check_enough_samples, numbered
from fedaf.protocol import Key


def log_normal_sizes(labels: np.ndarray, clients: int, *, sigma: float, min_size: int, key: Key) -> Partition:
    """Give each client ``min_size`` samples and a share of the others in proportion to exp(sigma z), z ~ N(0, 1).

    The samples are drawn at random, so that all clients have the same label distribution.

    Raises:
        UserError: If there are not ``min_size`` samples for every client.
    """
    check_enough_samples(labels, clients, min_size, "partition.min_size")
    rng = key.numpy()
    scores = sigma * rng.standard_normal(clients)
    weights = np.exp(scores - scores.max())
    cuts = np.rint(np.cumsum(weights) / weights.sum() * (len(labels) - clients * min_size)).astype(np.int64)
    sizes = np.diff(cuts, prepend=0) + min_size
    return numbered(np.split(rng.permutation(len(labels)), np.cumsum(sizes)[:-1]))


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    labels = data.train.labels.numpy()
    return log_normal_sizes(labels, options.clients, sigma=options.size_sigma, min_size=options.min_size, key=key)


SIZES = PartitionKind(("clients", "size_sigma", "min_size"), _split)
