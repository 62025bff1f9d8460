"""Between pixels as stored and sent (uint8) and pixels as a model sees them (normalised float32)."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 [..., C, H, W] to float32 with ``(x / 255 - mean) / std`` by channel."""
    m, s = _by_channel(tuple(mean), tuple(std), images.device)
    # Not as stored: a network may `view` its input, which needs pixels in this order in memory too.
    return images.to(torch.float32, memory_format=torch.contiguous_format).div_(255).sub_(m).div_(s)


def to_uint8(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The inverse of ``normalise``, clamped and rounded: what is uploaded."""
    m, s = _by_channel(tuple(mean), tuple(std), images.device)
    return (images.detach() * s + m).mul_(255).round_().clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=64)  # a new copy to the device for every batch would make a GPU wait for it
def _by_channel(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    shape = (-1, 1, 1)
    return torch.tensor(mean, device=device).view(shape), torch.tensor(std, device=device).view(shape)
