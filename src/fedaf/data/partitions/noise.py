"""Feature noise by client: an IID split whose images have more noise from client to client (Li et al., ICDE 2022)."""

from dataclasses import replace
from typing import Any

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Noise, Partition, PartitionKind
from fedaf.data.partitions.iid import iid
from fedaf.protocol import Key


def with_noise(partition: Partition, level: float, key: Key) -> Partition:
    """Add noise of standard deviation ``level * k / (K - 1)`` to the images of client k of K, for pixels in [0, 1]."""
    last = max(1, len(partition.rows) - 1)
    levels = {client: level * number / last for number, client in enumerate(partition.rows)}
    return replace(partition, noise=Noise(levels, key.derive("noise").value))


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    return with_noise(iid(data.train.labels.numpy(), options.clients, key), options.noise_level, key)


NOISE = PartitionKind(("clients", "noise_level"), _split)
