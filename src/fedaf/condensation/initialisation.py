"""The initialisation of condensed images."""

import torch
from torch import Tensor

from fedaf.condensation.options import FEWEST_IN_A_MEAN, CondensationOptions
from fedaf.data.pixels import normalise
from fedaf.protocol import Key, Shard, Task

NO_SOURCE = -1  # in place of a row


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
    sources = torch.full((len(classes), ipc, options.init_mean_of if options.init == "mean" else 1), NO_SOURCE)
    for i, label in enumerate(classes):
        rows = shard.rows_of(label)
        if options.init == "mean":
            # not all of a small class: then all its means would be the same image
            each = min(options.init_mean_of, max(FEWEST_IN_A_MEAN, len(rows) // 2))
            picks = torch.stack([torch.randperm(len(rows), generator=generator)[:each] for _ in range(ipc)])
        else:
            picks = torch.randperm(len(rows), generator=generator).repeat(-(-ipc // len(rows)))[:ipc, None]
        sources[i, :, : picks.shape[1]] = rows[picks]
        images[i] = normalise(shard.images[rows[picks]], task.mean, task.std).mean(1)
    return images, sources
