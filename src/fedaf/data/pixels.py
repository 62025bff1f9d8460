"""Conversion between stored pixels (uint8) and model inputs (normalised float32)."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from fedaf.kernels.available import kernels_work


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Convert uint8 [..., C, H, W] to float32 as ``(x / 255 - mean) / std`` by channel."""
    scale, shift = _affine(tuple(mean), tuple(std), images.device)
    # Contiguous, because a network may `view` its input.
    return torch.addcmul(shift, images.contiguous(), scale)  # one pass over memory, which matters on a GPU


def take(images: Tensor, rows: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return ``normalise(images[rows])``, on a GPU in one pass over memory. The images must be contiguous."""
    if images.is_cuda and kernels_work(images.device):
        from fedaf.kernels import pixels as pixel_kernels

        return pixel_kernels.take(images, rows, *_affine(tuple(mean), tuple(std), images.device))
    return normalise(images[rows], mean, std)


def to_uint8(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Invert ``normalise``, rounded and clamped to uint8."""
    scale, shift = _affine(tuple(mean), tuple(std), images.device)
    return images.detach().sub(shift).div_(scale).round_().clamp_(0, 255).to(torch.uint8)


def pixel_range(mean: Sequence[float], std: Sequence[float], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest normalised value of each channel, [C, 1, 1]."""
    scale, shift = _affine(tuple(mean), tuple(std), device)
    return shift, shift + 255 * scale


@lru_cache(maxsize=64)  # a copy to the device for every batch would make the GPU wait
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return scale and shift by channel, from stored to normalised pixels."""
    m, s = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    return (1 / (255 * s)).float().to(device), (-m / s).float().to(device)
