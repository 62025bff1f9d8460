"""Random variations of training images, drawn and applied on the device, a new one for each image."""

from collections.abc import Sequence

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


def augment(images: Tensor, names: Sequence[str], draws: Tensor) -> Tensor:
    """Apply the named variations to normalised images [N, C, H, W], following ``draws`` [N, ``draws_of(names)``] from
    the uniform distribution on [0, 1); borders are filled with the mean colour."""
    if not names:
        return images
    count = len(images)
    columns: dict[str, Tensor] = dict(
        zip(names, torch.split(draws, [AUGMENTATIONS[name] for name in names], 1), strict=True)
    )

    def uniform(name: str, low: float, high: float) -> Tensor:
        return low + (high - low) * columns[name]

    if {"flip", "shift", "scale"} & set(names):
        zoom = images.new_ones(count, 2)
        offset = images.new_zeros(count, 2)
        if "scale" in names:
            zoom = uniform("scale", 1 / _SCALE, _SCALE)
        if "flip" in names:
            mirror = torch.where(columns["flip"] < 0.5, -1.0, 1.0)
            zoom = zoom * torch.cat([mirror, images.new_ones(count, 1)], 1)
        if "shift" in names:
            offset = uniform("shift", -2 * _SHIFT, 2 * _SHIFT)  # the sampling grid is two units wide
        affine = torch.cat([torch.diag_embed(zoom), offset.unsqueeze(2)], 2)
        grid = F.affine_grid(affine, list(images.shape), align_corners=False)
        images = F.grid_sample(images, grid, align_corners=False)
    if "brightness" in names:
        images = images + uniform("brightness", -_BRIGHTNESS, _BRIGHTNESS).view(-1, 1, 1, 1)
    if "contrast" in names:
        middle = images.mean((1, 2, 3), keepdim=True)
        images = middle + (images - middle) * uniform("contrast", 1 - _CONTRAST, 1 + _CONTRAST).view(-1, 1, 1, 1)
    return images
