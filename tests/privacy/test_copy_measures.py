"""Planted copies of each kind are found, and images that are no copies are not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedaf.privacy import copy_distances
from fedaf.privacy.copy_audit import AUDIT_SCALARS, audit_tensor, copy_audit
from fedaf.privacy.copy_distances import DISTANCES, reduced
from fedaf.privacy.copy_measures import compare, limits
from fedaf.protocol import Key, Payload, Schema, Shard
from support.photographs import SIDE, photographs

CPU = torch.device("cpu")
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
PRIVATE = photographs(300)
NEW = photographs(60, seed=1).images
HALF = SIDE // 2


def audit(shared: Tensor, shard: Shard = PRIVATE, before: Tensor | None = None) -> dict[str, float]:
    sources = torch.zeros(1, len(shared), 0, dtype=torch.int64)
    report = copy_audit(shared.unsqueeze(0), sources, shard, [0], Key(0), CPU, before)
    Schema(scalars=AUDIT_SCALARS).validate(Payload(scalars=report))
    return report


def bytes_of(images: Tensor) -> Tensor:
    return images.round().clamp(0, 255).to(torch.uint8)


def mirrored(images: Tensor) -> Tensor:
    return images.flip(-1)


def shifted(images: Tensor) -> Tensor:
    return F.pad(images[..., 3:, :-3], (3, 0, 0, 3))  # with a black border


def mirrored_and_shifted(images: Tensor) -> Tensor:
    return shifted(mirrored(images))


def recoloured(images: Tensor) -> Tensor:
    return bytes_of(0.5 * images + 70)


def with_other_channels(images: Tensor) -> Tensor:
    return bytes_of(images * torch.tensor([0.5, 0.8, 1.0]).view(3, 1, 1) + 10)


def noisy(images: Tensor) -> Tensor:
    return bytes_of(images + 10 * torch.randn(images.shape, generator=Key(0).torch()))


def quadrant_in_place(images: Tensor) -> Tensor:
    result = NEW[: len(images)].clone()
    result[..., :HALF, HALF:] = images[..., :HALF, HALF:]
    return result


def quadrant_elsewhere(images: Tensor) -> Tensor:
    result = NEW[: len(images)].clone()
    result[..., HALF:, :HALF] = images[..., :HALF, HALF:].flip(-1)
    return result


def tile(images: Tensor) -> Tensor:
    result = NEW[: len(images)].clone()
    result[..., 8:16, 16:24] = images[..., 8:16, 16:24]
    return result


def collage_of_four(images: Tensor) -> Tensor:
    small = F.avg_pool2d(images.float(), 2)
    rows = [torch.cat([small.roll(i, 0), small.roll(i + 1, 0)], 3) for i in (0, 2)]
    return bytes_of(torch.cat(rows, 2))


@pytest.mark.parametrize(
    ("fault", "measures"),
    [
        (lambda images: images, tuple(DISTANCES)),
        (mirrored, ("shifts", "quarters")),
        (shifted, ("shifts",)),
        (mirrored_and_shifted, ("shifts",)),
        (recoloured, ("shifts", "features", "tiles", "quarters")),
        (with_other_channels, ("shifts", "features")),
        (noisy, ("pixels", "features")),
        (quadrant_in_place, ("tiles", "quarters")),
        (quadrant_elsewhere, ("quarters",)),
        (tile, ("tiles",)),
        (collage_of_four, ("quarters",)),
    ],
)
def test_a_planted_copy_is_found(fault: Callable[[Tensor], Tensor], measures: tuple[str, ...]) -> None:
    report = audit(torch.cat([fault(PRIVATE.images[40:70]), NEW[:30]]))
    assert report["audit_compared"] == 60
    assert 0.45 <= report["audit_copied"] <= 0.55
    for name in measures:
        assert 0.45 <= report[f"audit_{name}_copied"] <= 0.55, name
        assert report[f"audit_{name}_min"] < report[f"held_out_{name}_limit"]


def test_shifted_and_mirrored_copies_have_a_correlation_of_1() -> None:
    new = audit(NEW[:20])["audit_correlation_max"]
    for fault in (mirrored, shifted, mirrored_and_shifted):
        report = audit(fault(PRIVATE.images[:20]))
        assert report["audit_correlation_mean"] == pytest.approx(1, abs=1e-3)
        assert report["audit_correlation_mean"] > new + 0.05
        assert report["audit_correlation_mean"] > report["held_out_correlation_max"] + 0.02


def means_of_many() -> Tensor:
    rows = [torch.randperm(300, generator=Key(i).torch())[:30] for i in range(60)]
    return torch.stack([bytes_of(PRIVATE.images[each].float().mean(0)) for each in rows])


def smooth_noise() -> Tensor:
    coarse = torch.rand(60, 3, 4, 4, generator=Key(0).torch())
    return bytes_of(255 * F.interpolate(coarse, size=SIDE, mode="bilinear"))


@pytest.mark.parametrize("images", [means_of_many(), smooth_noise(), NEW, torch.full((60, 3, SIDE, SIDE), 128).byte()])
def test_images_that_are_no_copies_stand_out_no_more_than_by_chance(images: Tensor) -> None:
    report = audit(images)
    assert report["audit_copied"] <= 0.05  # three of 60; two are expected
    assert audit(torch.cat([images, PRIVATE.images[:20]]))["audit_copied"] >= 0.25


def test_an_exact_copy_is_found_even_if_private_images_repeat() -> None:
    """Half of the images have a twin, so the lowest ratios of real images are 0."""
    images = torch.cat([PRIVATE.images[:100], PRIVATE.images[:50]])
    report = audit(PRIVATE.images[[10, 60]], Shard(images, torch.zeros(150, dtype=torch.int64), 1))
    assert report["held_out_pixels_min"] == pytest.approx(0, abs=2e-3)
    assert report["audit_pixels_copied"] == report["audit_copied"] == 1


def test_rounds_add_up_to_one_audit_of_all_images() -> None:
    shared = torch.cat([NEW[:10], PRIVATE.images[:3], shifted(PRIVATE.images[5:9]), NEW[10:20]])
    at_once, first = audit(shared), audit(shared[:12])
    after = audit(shared[12:], before=audit_tensor(first))
    by_round = {"held_out_images", "held_out_psnr_mean", "held_out_psnr_max"}  # PSNR has a new sample in each round
    for name in AUDIT_SCALARS.keys() - by_round:
        assert after[name] == pytest.approx(at_once[name], abs=1e-9), name
    limited = {name: value for name, value in first.items() if name.startswith("held_out") and name not in by_round}
    assert {name: after[name] for name in limited} == limited


def test_the_baseline_depends_on_the_data_only() -> None:
    first, second = audit(NEW[:4]), audit(PRIVATE.images[:9])
    for name in AUDIT_SCALARS:
        if name.startswith("held_out") and "psnr" not in name and name != "held_out_images":
            assert first[name] == second[name]


@pytest.mark.parametrize("device", DEVICES)
def test_batches_and_devices_do_not_change_the_figures(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, real = (reduced(images) for images in (torch.cat([NEW[:5], tile(PRIVATE.images[:5])]), PRIVATE.images))
    expected = compare(shared, real)
    monkeypatch.setattr(copy_distances, "_IMAGES", 7)
    monkeypatch.setattr(copy_distances, "_PAIRS", 100)
    found = compare(shared.to(device), real.to(device))
    alone = [compare(image.unsqueeze(0).to(device), real.to(device)) for image in shared]
    assert torch.allclose(found.ratios, expected.ratios, atol=5e-3)
    assert torch.allclose(torch.cat([each.ratios for each in alone]), expected.ratios, atol=5e-3)
    assert torch.allclose(found.correlation, expected.correlation, atol=1e-4)


def test_all_shifts_at_once_give_the_same_correlation_as_one_by_one() -> None:
    images, real = (torch.rand(number, 1, 9, 12, generator=Key(number).torch()) for number in (4, 6))
    at_once = copy_distances._correlation_of_some(images, real, torch.arange(6).expand(4, -1))
    assert torch.allclose(at_once, copy_distances._correlation_of_all(images, real), atol=1e-5)


def test_a_ratio_is_the_nearest_distance_over_the_mean_of_the_next_50() -> None:
    real = torch.arange(2.0, 102.0).view(-1, 1, 1, 1)
    found = compare(torch.zeros(1, 1, 1, 1), real)
    assert found.ratios[0, 0] == pytest.approx(2 / (sum(range(3, 53)) / 50))
    without = compare(real[:1], real, without=torch.tensor([0]))
    assert without.ratios[0, 0] == pytest.approx(1 / (sum(range(2, 52)) / 50))


@pytest.mark.parametrize("number", [1, 60, 100, 1000])
def test_at_most_1_percent_of_the_real_images_are_below_a_limit(number: int) -> None:
    held_out = 0.1 + 0.9 * torch.rand(number, len(DISTANCES), generator=Key(number).torch(), dtype=torch.float64)
    below = (held_out < limits(held_out)).any(1).double().mean()
    assert below <= 0.01
    assert below >= (0.008 if number == 1000 else 0)


@pytest.mark.parametrize("side", [1, 2, 5, 8, 28, 40])
def test_images_of_any_size_can_be_compared(side: int) -> None:
    images = torch.randint(0, 256, (70, 1, side, side + 1), dtype=torch.uint8, generator=Key(side).torch())
    report = audit(images[:5], Shard(images, torch.zeros(70, dtype=torch.int64), 1))
    assert report["audit_pixels_min"] <= 0.01
    if side > 1:
        assert report["audit_copied"] == 1
