"""The order of the images in an epoch."""

import torch
from torch import Tensor


def epoch_order(count: int, generator: torch.Generator, weights: Tensor | None = None) -> Tensor:
    """Return ``count`` rows in random order: every row once, or in proportion to its weight.

    With weights, a row whose expected number of draws is x is drawn floor(x) or ceil(x) times (systematic sampling),
    so an epoch varies less than with independent draws.

    Args:
        count: The number of images.
        generator: The source of randomness, on the CPU.
        weights: float64 [count], not negative, with a positive sum; ``None``: every row once.
    """
    order = torch.randperm(count, generator=generator)
    if weights is None:
        return order
    ends = weights[order].cumsum(0)
    points = torch.arange(count, dtype=torch.float64) + torch.rand(1, dtype=torch.float64, generator=generator)
    rows = torch.searchsorted(ends, points * (ends[-1] / count), right=True)
    drawn = order[rows.clamp(max=count - 1)]
    return drawn[torch.randperm(count, generator=generator)]
