"""Between pixels as stored and sent (uint8) and pixels as a model sees them (normalised float32)."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fedaf.kernels.available import kernels_work


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """uint8 [..., C, H, W] to float32 with ``(x / 255 - mean) / std`` by channel."""
    scale, shift = _affine(tuple(mean), tuple(std), images.device)
    # Not as stored: a network may `view` its input, which needs pixels in this order in memory too.
    return torch.addcmul(shift, images.contiguous(), scale)  # in one pass, which matters on a GPU


def take(images: Tensor, rows: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """``normalise(images[rows])``, on a GPU in one pass over memory. The images must be contiguous."""
    if images.is_cuda and kernels_work(images.device):
        from fedaf.kernels import pixels as pixel_kernels

        return pixel_kernels.take(images, rows, *_affine(tuple(mean), tuple(std), images.device))
    return normalise(images[rows], mean, std)


def to_uint8(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The inverse of ``normalise``, clamped and rounded: what is uploaded."""
    scale, shift = _affine(tuple(mean), tuple(std), images.device)
    return images.detach().sub(shift).div_(scale).round_().clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=64)  # a new copy to the device for every batch would make a GPU wait for it
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Scale and shift from stored to normalised pixels, by channel."""
    m, s = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    return (1 / (255 * s)).float().to(device), (-m / s).float().to(device)
