"""Random augmentations of training images, drawn and applied on the device, independently for each image.

The built-in augmentations share one pass: each sets some parameters of an image, and ``augment`` applies all of them
with a single sampling step. A custom augmentation is a function that is applied after this pass.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaf.data.registry import AUGMENTATIONS

# Strengths of differentiable Siamese augmentation (Zhao and Bilen, ICML 2021), on normalised images.
_SHIFT = 0.125
_SCALE = 1.2
_DEGREES = 15.0
_BRIGHTNESS = 0.5
_CONTRAST = 0.5
_SATURATION = 1.0
_CUTOUT = 0.5

# The parameters of an image, with the values that leave it unchanged.
_UNCHANGED = {
    "scale": (1.0, 1.0),
    "rotate": (0.0,),
    "shift": (0.0, 0.0),
    "brightness": (0.0,),
    "contrast": (1.0,),
    "saturation": (1.0,),
    "cutout": (0.0, 0.0),
}
_WIDTH = sum(map(len, _UNCHANGED.values()))


@dataclass(frozen=True)
class Augmentation:
    """One augmentation; exactly one of ``set_parameters`` and ``apply`` is given.

    Args:
        draws: Random numbers that each image needs, uniform on [0, 1).
        set_parameters: Built-in augmentations: sets columns of the parameters, from draws [N, ``draws``].
        apply: Custom augmentations: from normalised images [N, C, H, W] and draws [N, ``draws``] to images of the same
            shape. It must run on any device and must not depend on the values of tensors in Python.
    """

    draws: int
    set_parameters: Callable[[Mapping[str, Tensor], Tensor], None] | None = None
    apply: Callable[[Tensor, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if (self.set_parameters is None) == (self.apply is None):
            raise ValueError("an Augmentation needs either set_parameters or apply")


def _scale_uniform(low: float, high: float, columns: Mapping[str, Tensor], draws: Tensor) -> None:
    columns["scale"].mul_(low + (high - low) * draws)  # a flip is a factor of the same column


def _flip(columns: Mapping[str, Tensor], draws: Tensor) -> None:
    columns["scale"][:, :1] *= torch.where(draws < 0.5, -1.0, 1.0)


def _set_uniform(name: str, low: float, high: float, columns: Mapping[str, Tensor], draws: Tensor) -> None:
    columns[name].copy_(low + (high - low) * draws)


def _uniform(name: str, low: float, high: float) -> Augmentation:
    return Augmentation(len(_UNCHANGED[name]), partial(_set_uniform, name, low, high))


FLIP = Augmentation(1, _flip)
SHIFT = _uniform("shift", -2 * _SHIFT, 2 * _SHIFT)  # the sampling grid is two units wide
SCALE = Augmentation(2, partial(_scale_uniform, 1 / _SCALE, _SCALE))
ROTATE = _uniform("rotate", -math.radians(_DEGREES), math.radians(_DEGREES))
BRIGHTNESS = _uniform("brightness", -_BRIGHTNESS, _BRIGHTNESS)
CONTRAST = _uniform("contrast", 1 - _CONTRAST, 1 + _CONTRAST)
SATURATION = _uniform("saturation", 1 - _SATURATION, 1 + _SATURATION)
CUTOUT = _uniform("cutout", -1, 1)


def draws_of(names: Sequence[str]) -> int:
    """Return how many random numbers an image needs."""
    return sum(augmentation.draws for augmentation in _find(tuple(names)))


def augmentation_parameters(names: Sequence[str], draws: Tensor) -> Tensor:
    """Turn ``draws`` [N, ``draws_of(names)``], uniform on [0, 1), into the parameters of each image for ``augment``.

    The draws of custom augmentations are appended unchanged.
    """
    found = _find(tuple(names))
    parts = dict(zip(names, draws.split([augmentation.draws for augmentation in found], 1), strict=True))
    result = draws.new_tensor([value for values in _UNCHANGED.values() for value in values]).repeat(len(draws), 1)
    columns = _columns(result)
    custom = []
    for name, augmentation in dict(zip(names, found, strict=True)).items():
        if augmentation.set_parameters:
            augmentation.set_parameters(columns, parts[name])
        else:
            custom.append(parts[name])
    return torch.cat([result, *custom], 1) if custom else result


def augment(images: Tensor, names: Sequence[str], parameters: Tensor) -> Tensor:
    """Augment normalised images [N, C, H, W], each by its row of ``augmentation_parameters``.

    Borders and cut out squares are filled with the mean colour.
    """
    grid, columns = _pixel_centres(*images.shape[2:], images.device), _columns(parameters[:, None, None, :_WIDTH])
    if {"flip", "shift", "scale", "rotate"} & set(names):
        rotated = _rotate(grid, columns["rotate"]) if "rotate" in names else grid
        images = F.grid_sample(images, torch.addcmul(columns["shift"], rotated, columns["scale"]), align_corners=False)
    if "saturation" in names:
        images = torch.lerp(images.mean(1, keepdim=True), images, columns["saturation"])
    if "contrast" in names:
        images = torch.lerp(images.mean((1, 2, 3), keepdim=True), images, columns["contrast"])
    if "brightness" in names:
        images = images + columns["brightness"]
    if "cutout" in names:
        kept = (grid - columns["cutout"]).abs().amax(-1) >= _CUTOUT
        images = images * kept[:, None]
    first = _WIDTH
    for augmentation in dict(zip(names, _find(tuple(names)), strict=True)).values():
        if augmentation.apply:
            images = augmentation.apply(images, parameters[:, first : first + augmentation.draws])
            first += augmentation.draws
    return images


@lru_cache(maxsize=64)
def _find(names: tuple[str, ...]) -> tuple[Augmentation, ...]:
    return tuple(AUGMENTATIONS.find(name) for name in names)


def _columns(rows: Tensor) -> dict[str, Tensor]:
    """Return views of the parameters by name."""
    return dict(zip(_UNCHANGED, rows.split([len(values) for values in _UNCHANGED.values()], -1), strict=True))


def _rotate(grid: Tensor, angle: Tensor) -> Tensor:
    across = torch.stack((-grid[..., 1], grid[..., 0]), -1)
    return grid * angle.cos() + across * angle.sin()


@lru_cache(maxsize=16)
def _pixel_centres(height: int, width: int, device: torch.device) -> Tensor:
    """Return the (x, y) coordinates of all pixel centres, [H, W, 2], with the image from -1 to 1."""
    y, x = ((2 * torch.arange(size, device=device) + 1) / size - 1 for size in (height, width))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
