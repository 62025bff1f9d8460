"""The half-out test: are condensed images nearer to the real images they were made from than to others?"""

from dataclasses import dataclass

import torch
from scipy.stats import binom
from torch import Tensor

Labelled = tuple[Tensor, Tensor]  # images or features [n, ...], and labels [n]


@dataclass(frozen=True)
class HalfOut:
    """Which half the nearest real images of condensed images are in.

    Args:
        images: Number of condensed images that were compared.
        share: Share of them whose nearest real image is in the used half; about 0.5 without copying.
        neighbours: Number of different real images that are nearest to some condensed image.
        p_value: One-sided: the chance that at least as many of these neighbours are in the used half, if each is there
            with probability 1/2. A neighbour counts once, because condensed images are not independent of each other.
    """

    images: int
    share: float
    neighbours: int
    p_value: float


def half_out(shared: Labelled, used: Labelled, unused: Labelled) -> HalfOut:
    """Compare condensed images with the real images of their class: those that were used, and those that were not.

    The two halves must come from a random split, and only the used one may have had an influence on the condensed
    images. Of each class, both halves are cut to the size of the smaller one.

    Args:
        shared: Condensed images or their features, and their labels.
        used: Real images that they were made from.
        unused: Real images that they were not made from.
    """
    images = hits = neighbours = neighbour_hits = 0
    for label in shared[1].unique().tolist():
        mine, first, second = (_of_class(label, *part) for part in (shared, used, unused))
        size = min(len(first), len(second))
        if not size:
            continue
        nearest = torch.cdist(mine, torch.cat([first[:size], second[:size]])).argmin(1)
        different = nearest.unique()
        images, hits = images + len(nearest), hits + int((nearest < size).sum())
        neighbours, neighbour_hits = neighbours + len(different), neighbour_hits + int((different < size).sum())
    p_value = float(binom.sf(neighbour_hits - 1, neighbours, 0.5)) if neighbours else 1.0
    return HalfOut(images, hits / images if images else 0.5, neighbours, p_value)


def _of_class(label: int, items: Tensor, labels: Tensor) -> Tensor:
    return items[labels == label].flatten(1).double()
