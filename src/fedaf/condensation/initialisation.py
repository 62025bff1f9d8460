"""The initialisation of condensed images."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaf.condensation.options import FEWEST_IN_A_MEAN, CondensationOptions
from fedaf.data.pixels import normalise
from fedaf.protocol import Key, Shard, Task

NO_SOURCE = -1  # in place of a row
_THUMBNAIL = 8  # pixels; the size at which images are compared


def initial_images(
    shard: Shard, classes: list[int], options: CondensationOptions, task: Task, key: Key
) -> tuple[Tensor, Tensor]:
    """Make the images that condensation starts from.

    Returns:
        Normalised images [classes, ipc, C, H, W], and the rows of the shard that each was made from [classes, ipc, n],
        padded with ``NO_SOURCE``.
    """
    ipc, generator = options.ipc, key.torch()
    if options.init == "noise":
        images = torch.randn(len(classes), ipc, *task.image_shape, generator=generator)
        return images, torch.empty(len(classes), ipc, 0, dtype=torch.int64)
    images = torch.empty(len(classes), ipc, *task.image_shape)
    most = 1 if options.init == "real" else options.init_mean_of
    sources = torch.full((len(classes), ipc, most), NO_SOURCE)
    for i, label in enumerate(classes):
        rows = shard.rows_of(label)
        if options.init == "mean":
            # not all of a small class: then all its means would be the same image
            each = min(options.init_mean_of, max(FEWEST_IN_A_MEAN, len(rows) // 2))
            picks = torch.stack([torch.randperm(len(rows), generator=generator)[:each] for _ in range(ipc)])
        elif options.init == "clusters":
            picks = clusters(shard.images[rows], ipc, options.init_mean_of, generator)
        else:
            picks = torch.randperm(len(rows), generator=generator).repeat(-(-ipc // len(rows)))[:ipc, None]
        sources[i, :, : picks.shape[1]] = rows[picks]
        images[i] = normalise(shard.images[rows[picks]], task.mean, task.std).mean(1)
    return images, sources


def clusters(images: Tensor, count: int, size: int, generator: torch.Generator) -> Tensor:
    """Group similar images (micro-aggregation): every cluster has exactly ``size`` images.

    The clusters are disjoint and come from a random half of the images. If a half has too few images for ``count``
    clusters, the others come from further random halves.

    Args:
        images: uint8 images of one class, [N, C, H, W], at least ``size`` of them.
        count: Number of clusters.
        size: Images per cluster.
        generator: Source of the random halves, and of the images that clusters grow from.

    Returns:
        Rows of ``images`` [count, size].
    """
    side = min(_THUMBNAIL, *images.shape[2:])
    found: list[Tensor] = []
    while len(found) < count:
        half = torch.randperm(len(images), generator=generator)[: max(size, len(images) // 2)]
        thumbnails = F.adaptive_avg_pool2d(images[half].float(), side).flatten(1)
        seeds = min(count - len(found), len(half) // size)
        distances = torch.cdist(thumbnails[:seeds], thumbnails)
        distances[:, :seeds] = torch.inf  # no cluster takes the image that another one grows from
        for seed in range(seeds):
            nearest = distances[seed].topk(size - 1, largest=False).indices
            distances[:, nearest] = torch.inf
            found.append(half[torch.cat([torch.tensor([seed]), nearest])])
    return torch.stack(found)
