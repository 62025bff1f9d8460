"""Augmentations: the effect of each, and its strength."""

import pytest
import torch
from torch import Tensor

from fedaf.data import augmentation
from fedaf.data.augmentation import augmentation_parameters, draws_of
from fedaf.data.registry import AUGMENTATIONS
from fedaf.protocol import Key


def augment(images: Tensor, names: tuple[str, ...], generator: torch.Generator) -> Tensor:
    draws = torch.rand(len(images), draws_of(names), generator=generator)
    return augmentation.augment(images, names, augmentation_parameters(names, draws))


def pictures(count: int, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=Key(0).torch())


def test_no_augmentation_is_the_identity() -> None:
    images = pictures(4)
    assert augment(images, (), Key(0).torch()) is images


def test_flip_gives_the_image_or_its_mirror_and_both_occur() -> None:
    images = pictures(40, size=7)
    flipped = augment(images, ("flip",), Key(0).torch())
    kept = (flipped - images).abs().amax((1, 2, 3)) < 1e-4
    mirrored = (flipped - images.flip(3)).abs().amax((1, 2, 3)) < 1e-4
    assert (kept ^ mirrored).all()
    assert 10 <= mirrored.sum() <= 30


@pytest.mark.parametrize("name", AUGMENTATIONS.names)
def test_each_augmentation_keeps_shape_and_type_and_follows_its_generator(name: str) -> None:
    images = pictures(16)
    before = images.clone()
    first, again, other = (augment(images, (name,), Key(k).torch()) for k in (1, 1, 2))
    assert first.shape == images.shape
    assert first.dtype == images.dtype
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.allclose(first, images)
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", AUGMENTATIONS.names)
def test_each_image_is_augmented_independently(name: str) -> None:
    varied = augment(pictures(1).expand(16, -1, -1, -1), (name,), Key(0).torch())
    distinct = {tuple(image.flatten().round(decimals=3).tolist()) for image in varied}
    assert len(distinct) == (2 if name == "flip" else 16)


def test_brightness_adds_at_most_a_half_to_all_pixels_of_an_image_alike() -> None:
    images = pictures(64)
    change = augment(images, ("brightness",), Key(0).torch()) - images
    assert change.flatten(1).std(1).max() < 1e-5
    assert change.abs().max() <= 0.5 + 1e-5
    assert change.max() > 0.4
    assert change.min() < -0.4


def test_contrast_scales_around_the_mean_of_the_image_by_a_half_to_one_and_a_half() -> None:
    images = pictures(64)
    varied = augment(images, ("contrast",), Key(0).torch())
    torch.testing.assert_close(varied.mean((1, 2, 3)), images.mean((1, 2, 3)), rtol=1e-4, atol=1e-5)
    factors = varied.flatten(1).std(1) / images.flatten(1).std(1)
    assert 0.5 - 1e-4 <= factors.min() < 0.6
    assert 1.4 < factors.max() <= 1.5 + 1e-4


def centre_of_mass(images: Tensor) -> Tensor:
    place = torch.arange(images.shape[-1], dtype=images.dtype)
    mass = images.sum((1, 2, 3))
    return torch.stack([(images.sum((1, i)) * place).sum(1) / mass for i in (2, 3)], 1)


def test_shift_moves_an_image_by_at_most_an_eighth_of_its_size_along_both_axes() -> None:
    images = torch.zeros(64, 1, 32, 32)
    images[:, :, 15:17, 15:17] = 1
    moved = centre_of_mass(augment(images, ("shift",), Key(0).torch())) - centre_of_mass(images)
    assert moved.abs().max() <= 4 + 1e-3
    assert moved.amax(0).min() > 3
    assert moved.amin(0).max() < -3


def test_scale_stretches_by_at_most_a_fifth_around_the_centre() -> None:
    images = torch.zeros(64, 1, 32, 32)
    images[:, :, 8:24, 8:24] = 1
    scaled = augment(images, ("scale",), Key(0).torch())
    torch.testing.assert_close(centre_of_mass(scaled), centre_of_mass(images), rtol=0, atol=1e-2)
    area = scaled.sum((1, 2, 3)) / images.sum((1, 2, 3))
    assert 1.2**-2 * 0.98 <= area.min() < 0.9
    assert 1.1 < area.max() <= 1.2**2 * 1.02


def test_rotation_turns_by_at_most_fifteen_degrees_around_the_centre() -> None:
    images = torch.zeros(64, 1, 33, 33)
    images[:, :, 4:8, 15:18] = 1  # above the centre
    turned = augment(images, ("rotate",), Key(0).torch())
    right, down = (centre_of_mass(turned) - 16).unbind(1)
    torch.testing.assert_close((down.square() + right.square()).sqrt(), torch.full((64,), 10.5), rtol=0, atol=0.1)
    angle = torch.rad2deg(torch.atan2(right, -down))
    assert angle.abs().max() <= 15.1
    assert angle.max() > 13
    assert angle.min() < -13


def test_a_turned_image_is_not_sheared_by_its_scale() -> None:
    draws = torch.tensor([[1.0, 0.0, 1.0]])  # stretched to 1/1.2 across, 1.2 down, turned by 15 degrees
    cross = torch.zeros(1, 1, 65, 65)
    cross[:, :, 31:34, 12:53] = cross[:, :, 12:53, 31:34] = 1
    names = ("scale", "rotate")
    turned = augmentation.augment(cross, names, augmentation_parameters(names, draws))[0, 0]
    y, x = (turned > 0.5).nonzero().double().sub(32).unbind(1)
    inertia = torch.stack([torch.stack([(a * b).mean() for b in (x, y)]) for a in (x, y)])
    _, axes = torch.linalg.eigh(inertia)
    degrees = torch.rad2deg(torch.atan2(axes[1], axes[0]).remainder(torch.pi / 2))
    assert torch.minimum((degrees - 15).abs(), (degrees - 75).abs()).max() < 1.5


def test_saturation_moves_colours_away_from_grey_or_back_to_it() -> None:
    images = pictures(64)
    varied = augment(images, ("saturation",), Key(0).torch())
    torch.testing.assert_close(varied.mean(1), images.mean(1), rtol=1e-4, atol=1e-5)
    factors = varied.std(1).mean((1, 2)) / images.std(1).mean((1, 2))
    assert 0 <= factors.min() < 0.1
    assert 1.9 < factors.max() <= 2 + 1e-4


def test_cutout_leaves_the_mean_colour_in_a_square_of_half_the_side() -> None:
    images = pictures(64, size=32)
    cut = augment(images, ("cutout",), Key(0).torch())
    gone = (cut == 0).all(1)
    assert torch.equal(torch.where(gone[:, None], images, cut), images)
    rows, columns = gone.any(2).sum(1), gone.any(1).sum(1)
    assert torch.equal(gone.sum((1, 2)), rows * columns)
    assert rows.max() == columns.max() == 16
    assert min(rows.min(), columns.min()) >= 8


def test_what_moves_in_from_outside_is_the_mean_colour() -> None:
    shifted = augment(torch.ones(16, 1, 32, 32), ("shift",), Key(0).torch())
    assert shifted.min() == 0
    assert shifted.max() <= 1 + 1e-5
