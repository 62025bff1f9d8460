"""Random variations of training images, drawn and applied on the device, a new one for each image."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

AUGMENTATIONS = ("flip", "shift", "scale", "brightness", "contrast")

# Strengths of differentiable Siamese augmentation (Zhao and Bilen, ICML 2021), on normalised images.
_SHIFT = 0.125
_SCALE = 1.2
_BRIGHTNESS = 0.5
_CONTRAST = 0.5


def augment(images: Tensor, names: Sequence[str], generator: torch.Generator) -> Tensor:
    """Apply the named variations to normalised images [N, C, H, W]; borders are filled with the mean colour."""
    if not names:
        return images
    count = len(images)

    def uniform(low: float, high: float, columns: int = 1) -> Tensor:
        draws = torch.rand(count, columns, generator=generator, device=images.device)
        return low + (high - low) * draws

    if {"flip", "shift", "scale"} & set(names):
        zoom = images.new_ones(count, 2)
        offset = images.new_zeros(count, 2)
        if "scale" in names:
            zoom = uniform(1 / _SCALE, _SCALE, 2)
        if "flip" in names:
            zoom = zoom * torch.cat([uniform(-1, 1).sign(), images.new_ones(count, 1)], 1)
        if "shift" in names:
            offset = uniform(-2 * _SHIFT, 2 * _SHIFT, 2)  # the sampling grid is two units wide
        affine = torch.cat([torch.diag_embed(zoom), offset.unsqueeze(2)], 2)
        grid = F.affine_grid(affine, list(images.shape), align_corners=False)
        images = F.grid_sample(images, grid, align_corners=False)
    if "brightness" in names:
        images = images + uniform(-_BRIGHTNESS, _BRIGHTNESS).view(-1, 1, 1, 1)
    if "contrast" in names:
        middle = images.mean((1, 2, 3), keepdim=True)
        images = middle + (images - middle) * uniform(1 - _CONTRAST, 1 + _CONTRAST).view(-1, 1, 1, 1)
    return images
