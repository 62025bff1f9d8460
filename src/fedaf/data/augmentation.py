"""Random variations of training images, drawn and applied on the device, a new one for each image."""

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

# Numbers that each needs, uniform on [0, 1).
AUGMENTATIONS = {
    "flip": 1,
    "shift": 2,
    "scale": 2,
    "rotate": 1,
    "brightness": 1,
    "contrast": 1,
    "saturation": 1,
    "cutout": 2,
}

# Strengths of differentiable Siamese augmentation (Zhao and Bilen, ICML 2021), on normalised images.
_SHIFT = 0.125
_SCALE = 1.2
_DEGREES = 15.0
_BRIGHTNESS = 0.5
_CONTRAST = 0.5
_SATURATION = 1.0
_CUTOUT = 0.5

# What is done to an image, as columns: the places from which it is sampled are turned, scaled and shifted.
_UNCHANGED = {
    "scale": (1.0, 1.0),
    "rotate": (0.0,),
    "shift": (0.0, 0.0),
    "brightness": (0.0,),
    "contrast": (1.0,),
    "saturation": (1.0,),
    "cutout": (0.0, 0.0),
}


def draws_of(names: Sequence[str]) -> int:
    """How many random numbers an image needs."""
    return sum(AUGMENTATIONS[name] for name in names)


def variations(names: Sequence[str], draws: Tensor) -> Tensor:
    """From ``draws`` [N, ``draws_of(names)``], uniform on [0, 1), what is done to each image: a row for ``augment``."""
    columns: dict[str, Tensor] = dict(zip(names, draws.split([AUGMENTATIONS[name] for name in names], 1), strict=True))
    result = draws.new_tensor([value for values in _UNCHANGED.values() for value in values]).repeat(len(draws), 1)
    each = _columns(result)

    def set_uniform(name: str, low: float, high: float) -> None:
        if name in columns:
            each[name].copy_(low + (high - low) * columns[name])

    set_uniform("scale", 1 / _SCALE, _SCALE)
    if "flip" in columns:
        each["scale"][:, :1] *= torch.where(columns["flip"] < 0.5, -1.0, 1.0)
    set_uniform("rotate", -math.radians(_DEGREES), math.radians(_DEGREES))
    set_uniform("shift", -2 * _SHIFT, 2 * _SHIFT)  # the sampling grid is two units wide
    set_uniform("brightness", -_BRIGHTNESS, _BRIGHTNESS)
    set_uniform("contrast", 1 - _CONTRAST, 1 + _CONTRAST)
    set_uniform("saturation", 1 - _SATURATION, 1 + _SATURATION)
    set_uniform("cutout", -1, 1)
    return result


def augment(images: Tensor, names: Sequence[str], each: Tensor) -> Tensor:
    """Apply the named variations to normalised images [N, C, H, W], to each as its row of ``variations`` says; borders
    and what is cut out are filled with the mean colour."""
    places, by = _places(*images.shape[2:], images.device), _columns(each[:, None, None, :])
    if {"flip", "shift", "scale", "rotate"} & set(names):
        turned = _turned(places, by["rotate"]) if "rotate" in names else places
        images = F.grid_sample(images, torch.addcmul(by["shift"], turned, by["scale"]), align_corners=False)
    if "saturation" in names:
        images = torch.lerp(images.mean(1, keepdim=True), images, by["saturation"])
    if "contrast" in names:
        images = torch.lerp(images.mean((1, 2, 3), keepdim=True), images, by["contrast"])
    if "brightness" in names:
        images = images + by["brightness"]
    if "cutout" in names:
        kept = (places - by["cutout"]).abs().amax(-1) >= _CUTOUT
        images = images * kept[:, None]
    return images


def _columns(rows: Tensor) -> dict[str, Tensor]:
    """Views of what ``variations`` has in a row, by name."""
    return dict(zip(_UNCHANGED, rows.split([len(values) for values in _UNCHANGED.values()], -1), strict=True))


def _turned(places: Tensor, angle: Tensor) -> Tensor:
    across = torch.stack((-places[..., 1], places[..., 0]), -1)
    return places * angle.cos() + across * angle.sin()


@lru_cache(maxsize=16)
def _places(height: int, width: int, device: torch.device) -> Tensor:
    """Where the middle of each pixel is, [H, W, 2], the image reaching from -1 to 1; x before y."""
    y, x = ((2 * torch.arange(size, device=device) + 1) / size - 1 for size in (height, width))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
