"""The initialisation of condensed images."""

import torch
from torch import Tensor

from fedaf.condensation.clusters import clusters_of
from fedaf.condensation.options import FEWEST_IN_A_MEAN, CondensationOptions
from fedaf.data.pixels import normalise
from fedaf.protocol import Key, Shard, Task

NO_SOURCE = -1  # in place of a row
_NOISE = 0.1  # standard deviation, for normalised pixels


def initial_images(
    shard: Shard,
    classes: list[int],
    options: CondensationOptions,
    task: Task,
    key: Key,
    clusters: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Make the images that condensation starts from.

    Args:
        shard: The client's data.
        classes: The classes to condense.
        options: How many images, and what they start from.
        task: The shape and normalisation of images.
        key: Source of the random choices.
        clusters: The result of ``clusters_of``, if it is known from an earlier round.

    Returns:
        Normalised images [classes, ipc, C, H, W], and the rows of the shard that each was made from [classes, ipc, n],
        padded with ``NO_SOURCE``.
    """
    ipc, generator = options.ipc, key.torch()
    if options.init == "noise":
        images = torch.randn(len(classes), ipc, *task.image_shape, generator=generator)
        return images, torch.empty(len(classes), ipc, 0, dtype=torch.int64)
    if options.init == "clusters" and clusters is None:
        clusters = clusters_of(shard, options.init_mean_of)
    most = {"real": 1, "mean": options.init_mean_of, "clusters": 4 * options.init_mean_of}[options.init]
    images = torch.empty(len(classes), ipc, *task.image_shape)
    sources = torch.full((len(classes), ipc, most), NO_SOURCE)
    for i, label in enumerate(classes):
        rows = shard.rows_of(label)
        if clusters is None:
            picks = _random_picks(len(rows), options, generator)
            weights = torch.full(picks.shape, 1 / picks.shape[1])
        else:
            picks, weights = _cluster_picks(clusters[rows], ipc, most, generator)
        sources[i, :, : picks.shape[1]] = torch.where(weights > 0, rows[picks], NO_SOURCE)
        chosen = normalise(shard.images[rows[picks]], task.mean, task.std)
        images[i] = (chosen * weights[..., None, None, None]).sum(1)
        if clusters is not None and not clusters[rows].any():  # a single cluster: equal images would stay equal
            images[i, 1:] += _NOISE * torch.randn(images[i, 1:].shape, generator=generator)
    return images, sources


def _random_picks(count: int, options: CondensationOptions, generator: torch.Generator) -> Tensor:
    """Return the samples of a class whose mean each image is, [ipc, n]; different images may share samples."""
    if options.init == "real":
        return torch.randperm(count, generator=generator).repeat(-(-options.ipc // count))[: options.ipc, None]
    # not all of a small class: then all its means would be the same image
    each = min(options.init_mean_of, max(FEWEST_IN_A_MEAN, count // 2))
    return torch.stack([torch.randperm(count, generator=generator)[:each] for _ in range(options.ipc)])


def _cluster_picks(clusters: Tensor, ipc: int, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the samples of a class that each image is made from, and their weights, both [ipc, most].

    Images are means of different clusters, chosen at random. If there are fewer clusters than images, each further
    image is a random mixture of two cluster means (of the only mean with itself if there is just one). Unused places
    have weight 0.
    """
    members = clusters.argsort(stable=True).split(clusters.bincount().tolist())
    count = len(members)
    chosen = [(number, number, 1.0) for number in torch.randperm(count, generator=generator)[:ipc].tolist()]
    for _ in range(ipc - len(chosen)):
        first, second = torch.rand(count, generator=generator).argsort()[[0, -1]].tolist()
        chosen.append((first, second, float(torch.rand((), generator=generator))))
    picks, weights = torch.zeros(ipc, most, dtype=torch.int64), torch.zeros(ipc, most)
    for i, (first, second, share) in enumerate(chosen):
        parts = [(members[first], share)] + ([(members[second], 1 - share)] if share < 1 else [])
        rows = torch.cat([rows for rows, _ in parts])
        picks[i, : len(rows)] = rows
        weights[i, : len(rows)] = torch.cat([torch.full((len(rows),), weight / len(rows)) for rows, weight in parts])
    return picks, weights
