"""How much more an image resembles one private image than the others, and from where on that counts as a copy.

The measure is the nearest-neighbour ratio: the distance to the nearest private image of the class, divided by the mean
distance to the next 50. It is 0 for an exact copy. For a new image, and for a blurred mean of many images, it is as
high as for real images among each other, because many private images are about as near as the nearest.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedaf.privacy.copy_distances import DISTANCES

_NEXT = 50
_BY_CHANCE = 0.01  # the share of real images that count as copies of each other
_EXACT = 0.01  # a ratio of pixel distances below this is a copy, even if the private images have such pairs too


class Comparison(NamedTuple):
    """Images compared with private ones.

    Args:
        ratios: Nearest-neighbour ratios by the distances in ``DISTANCES``, [n, distances], from 0 (a copy) to 1.
        correlation: The highest correlation with a private image, shifted or mirrored, [n].
    """

    ratios: Tensor
    correlation: Tensor


def compare(images: Tensor, real: Tensor, without: Tensor | None = None) -> Comparison:
    """Compare images with the private images of their class.

    Args:
        images: Images as ``reduced`` returns them, [n, C, H, W].
        real: The private images, likewise.
        without: For each image, the row of ``real`` that it is, which is left out.
    """
    ratios, correlation = [], torch.empty(0)
    for name, distance_of in DISTANCES.items():
        distance = distance_of(images, real)
        if without is not None:
            distance.scatter_(2, without.view(1, -1, 1).expand(len(distance), -1, 1), torch.inf)
        ratios.append(_ratio(distance).amin(0).cpu())
        if name == "shifts":
            nearest = distance.squeeze(0).amin(1)
            correlation = (1 - nearest.square() / 2).clamp(0, 1).cpu()
    return Comparison(torch.stack(ratios, 1).double(), correlation.double())


def limits(held_out: Tensor) -> Tensor:
    """Return, for each measure, the ratio below which an image counts as a copy.

    The limits have the same rank in all measures, such that at most 1 % of the real images are below any of them. With
    fewer than 100 real images, the limits are their lowest ratios.

    Args:
        held_out: Ratios of real images, each compared with the others.
    """
    if not len(held_out):
        return torch.zeros(len(DISTANCES), dtype=torch.float64)
    lowest_rank = held_out.argsort(0).argsort(0).amin(1).sort().values
    found = held_out.sort(0).values[lowest_rank[int(_BY_CHANCE * len(held_out))]]
    found[list(DISTANCES).index("pixels")].clamp_(min=_EXACT)
    return found


def _ratio(distance: Tensor) -> Tensor:
    """Return the nearest-neighbour ratios of distances [..., real]; 1 if there is no other image to compare with."""
    nearest = distance.topk(min(1 + _NEXT, distance.shape[-1]), largest=False).values
    others = nearest[..., 1:]
    known = others.isfinite()
    mean = torch.where(known, others, 0).sum(-1) / known.sum(-1).clamp(min=1)
    return torch.where(mean > 0, nearest[..., 0] / mean.clamp(min=1e-12), 1).clamp(max=1)
