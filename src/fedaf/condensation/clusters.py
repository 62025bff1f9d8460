"""Micro-aggregation: fixed clusters of similar images, whose means are what condensation starts from.

The clusters of a class are disjoint and depend on the images alone. However many rounds and runs start from their
means, these reveal at most one mean for each cluster of ``size`` images or more.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaf.protocol import Key, Shard

NO_CLUSTER = -1

_THUMBNAIL = 8  # pixels; the size at which images are compared
_POWER_STEPS = 5


def clusters_of(shard: Shard, size: int) -> Tensor:
    """Return the cluster of each sample [N], numbered from 0 in each class.

    Samples of classes with fewer than ``size`` samples have none (``NO_CLUSTER``).
    """
    found = torch.full((len(shard),), NO_CLUSTER)
    for label, count in enumerate(shard.counts):
        if count >= size:
            rows = shard.rows_of(label)
            side = min(_THUMBNAIL, *shard.images.shape[2:])
            thumbnails = F.adaptive_avg_pool2d(shard.images[rows].float(), side)
            found[rows] = micro_aggregate(thumbnails.flatten(1), size)
    return found


def are_clusters_of(clusters: Tensor, shard: Shard, size: int) -> bool:
    """Return whether stored clusters can be those of ``clusters_of``: they cannot if the data changed in between."""
    if len(clusters) != len(shard):
        return False
    of_classes = [clusters[shard.rows_of(label)] for label, count in enumerate(shard.counts) if count >= size]
    return all(int(found.min()) == 0 and int(found.bincount().min()) >= size for found in of_classes)


def micro_aggregate(points: Tensor, size: int) -> Tensor:
    """Group similar points into clusters of ``size`` to 2 ``size`` - 1, and return the cluster of each point.

    The points are split in two at right angles to their first principal axis, and so on until no part can be split
    into two that are large enough. The result depends on the points only.

    Args:
        points: [N, D], at least ``size`` of them.
        size: The smallest number of points in a cluster.
    """
    found = torch.empty(len(points), dtype=torch.int64)
    start = torch.randn(points.shape[1], generator=Key(0).torch())
    parts, clusters = [torch.arange(len(points))], 0
    while parts:
        part = parts.pop()
        if len(part) < 2 * size:
            found[part] = clusters
            clusters += 1
            continue
        centred = points[part] - points[part].mean(0)
        axis = start
        for _ in range(_POWER_STEPS):
            axis = F.normalize(centred.T @ (centred @ axis), dim=0)
        ordered = part[(centred @ axis).argsort(stable=True)]
        half = len(part) // size // 2 * size  # whole clusters
        parts += [ordered[half:], ordered[:half]]
    return found
