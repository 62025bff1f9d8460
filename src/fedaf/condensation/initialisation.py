"""What condensed images start from."""

import torch
from torch import Tensor

from fedaf.condensation.options import CondensationOptions
from fedaf.data.pixels import normalise
from fedaf.protocol import Key, Shard, Task


def initial_images(
    shard: Shard, classes: list[int], options: CondensationOptions, task: Task, key: Key
) -> tuple[Tensor, Tensor]:
    """Normalised images [classes, ipc, C, H, W], and the rows of the shard each was made from [classes, ipc, n]."""
    ipc, generator = options.ipc, key.torch()
    if options.init == "noise":
        images = torch.randn(len(classes), ipc, *task.image_shape, generator=generator)
        return images, torch.empty(len(classes), ipc, 0, dtype=torch.int64)
    each = options.init_mean_of if options.init == "mean" else 1
    images = torch.empty(len(classes), ipc, *task.image_shape)
    sources = torch.empty(len(classes), ipc, each, dtype=torch.int64)
    for i, label in enumerate(classes):
        rows = shard.rows_of(label)
        if options.init == "mean":
            picks = torch.stack([torch.randperm(len(rows), generator=generator)[:each] for _ in range(ipc)])
        else:
            picks = torch.randperm(len(rows), generator=generator).repeat(-(-ipc // len(rows)))[:ipc, None]
        sources[i] = rows[picks]
        images[i] = normalise(shard.images[sources[i]], task.mean, task.std).mean(1)
    return images, sources
