"""Random variations of training images, drawn and applied on the device, a new one for each image."""

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Numbers that each needs, uniform on [0, 1).
AUGMENTATIONS = {"flip": 1, "shift": 2, "scale": 2, "brightness": 1, "contrast": 1}

# Strengths of differentiable Siamese augmentation (Zhao and Bilen, ICML 2021), on normalised images.
_SHIFT = 0.125
_SCALE = 1.2
_BRIGHTNESS = 0.5
_CONTRAST = 0.5


def draws_of(names: Sequence[str]) -> int:
    """How many random numbers an image needs."""
    return sum(AUGMENTATIONS[name] for name in names)


def variations(names: Sequence[str], draws: Tensor) -> Tensor:
    """From ``draws`` [N, ``draws_of(names)``], uniform on [0, 1), what is done to each image, [N, 6]: stretching and
    shift of the sampling grid along both axes, change of brightness, and factor on contrast."""
    columns: dict[str, Tensor] = dict(zip(names, draws.split([AUGMENTATIONS[name] for name in names], 1), strict=True))
    result = draws.new_tensor([1.0, 1.0, 0.0, 0.0, 0.0, 1.0]).repeat(len(draws), 1)

    def uniform(name: str, low: float, high: float) -> Tensor:
        return low + (high - low) * columns[name]

    if "scale" in names:
        result[:, 0:2] = uniform("scale", 1 / _SCALE, _SCALE)
    if "flip" in names:
        result[:, :1] *= torch.where(columns["flip"] < 0.5, -1.0, 1.0)
    if "shift" in names:
        result[:, 2:4] = uniform("shift", -2 * _SHIFT, 2 * _SHIFT)  # the sampling grid is two units wide
    if "brightness" in names:
        result[:, 4:5] = uniform("brightness", -_BRIGHTNESS, _BRIGHTNESS)
    if "contrast" in names:
        result[:, 5:6] = uniform("contrast", 1 - _CONTRAST, 1 + _CONTRAST)
    return result


def augment(images: Tensor, names: Sequence[str], each: Tensor) -> Tensor:
    """Apply the named variations to normalised images [N, C, H, W], to each as its row of ``variations`` says; borders
    are filled with the mean colour."""
    if {"flip", "shift", "scale"} & set(names):
        stretch, shift = each[:, None, None, 0:2], each[:, None, None, 2:4]
        grid = torch.addcmul(shift, _places(*images.shape[2:], images.device), stretch)
        images = F.grid_sample(images, grid, align_corners=False)
    if "contrast" in names:
        images = torch.lerp(images.mean((1, 2, 3), keepdim=True), images, each[:, 5, None, None, None])
    if "brightness" in names:
        images = images + each[:, 4, None, None, None]
    return images


@lru_cache(maxsize=16)
def _places(height: int, width: int, device: torch.device) -> Tensor:
    """Where the middle of each pixel is, [H, W, 2], the image reaching from -1 to 1; x before y."""
    y, x = ((2 * torch.arange(size, device=device) + 1) / size - 1 for size in (height, width))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
