import math

import pytest
import torch
from torch import Tensor

from fedaf.privacy.copy_audit import AUDIT_SCALARS, audit_tensor, copy_audit, pool_audits
from fedaf.protocol import Key, Payload, Schema, Shard
from support.photographs import photographs

CPU = torch.device("cpu")
EXACT_COPY = 10 * math.log10(255**2 * 12)


def flat_images(*colours: int) -> Tensor:
    return torch.tensor(colours, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone()


def psnr(difference: float) -> float:
    return 20 * math.log10(255 / difference)


def audit(shared: Tensor, sources: list[list[list[int]]], shard: Shard, classes: list[int]) -> dict[str, float]:
    report = copy_audit(shared, torch.tensor(sources, dtype=torch.int64), shard, classes, Key(0), CPU)
    Schema(scalars=AUDIT_SCALARS).validate(Payload(scalars=report))
    return report


def random_shard(count: int, classes: int = 2) -> Shard:
    images = torch.randint(0, 256, (count, 3, 4, 4), dtype=torch.uint8, generator=Key(0).torch())
    return Shard(images, torch.arange(count) % classes, classes)


def test_an_exact_copy_scores_the_highest_psnr_and_is_from_its_source() -> None:
    shard = random_shard(10)
    rows = [[[0], [4]], [[1], [7]]]
    report = audit(shard.images[torch.tensor(rows).squeeze(2)], rows, shard, [0, 1])
    assert pytest.approx(58.9, abs=0.05) == EXACT_COPY
    assert report["audit_psnr_mean"] == pytest.approx(EXACT_COPY, abs=1e-3)
    assert report["audit_psnr_max"] == pytest.approx(EXACT_COPY, abs=1e-3)
    assert report["audit_from_source"] == 1
    assert report["audit_images"] == 4


def test_an_image_is_scored_against_its_nearest_and_counted_only_if_that_is_a_source() -> None:
    shard = Shard(flat_images(10, 50, 200), torch.zeros(3, dtype=torch.int64), 1)
    shared = flat_images(53, 190).unsqueeze(0)  # nearest are row 1 at distance 3 and row 2 at distance 10
    report = audit(shared, [[[0, 1], [0, 1]]], shard, [0])
    assert report["audit_psnr_max"] == pytest.approx(psnr(3), abs=1e-3)
    assert report["audit_psnr_mean"] == pytest.approx((psnr(3) + psnr(10)) / 2, abs=1e-3)
    assert report["audit_from_source"] == 0.5


def test_psnr_averages_the_squared_error_over_pixels() -> None:
    shard = Shard(flat_images(100, 100), torch.zeros(2, dtype=torch.int64), 1)
    shared = torch.tensor([100, 104, 100, 108], dtype=torch.uint8).view(1, 1, 1, 2, 2)
    report = audit(shared, [[[0]]], shard, [0])
    assert report["audit_psnr_mean"] == pytest.approx(10 * math.log10(255**2 / ((16 + 64) / 4)), abs=1e-3)


def test_the_nearest_is_looked_for_in_the_images_own_class() -> None:
    shard = Shard(flat_images(10, 200), torch.tensor([0, 1]), 2)
    report = audit(flat_images(200).unsqueeze(0), [[[0]]], shard, [0])
    assert report["audit_psnr_mean"] == pytest.approx(psnr(190), abs=1e-3)
    assert report["audit_from_source"] == 1


def test_held_out_figures_exclude_the_image_itself() -> None:
    shard = Shard(flat_images(10, 30), torch.zeros(2, dtype=torch.int64), 1)
    report = audit(flat_images(0, 255).unsqueeze(0), [[[0], [1]]], shard, [0])
    assert report["held_out_psnr_mean"] == pytest.approx(psnr(20), abs=1e-3)
    assert report["held_out_psnr_max"] == pytest.approx(psnr(20), abs=1e-3)


def test_held_out_figures_are_of_real_images_not_of_shared_ones() -> None:
    shard = random_shard(12)
    reports = []
    for shared in (shard.images[[0, 2, 4]].unsqueeze(0), torch.zeros(1, 3, 3, 4, 4, dtype=torch.uint8)):
        reports.append(audit(shared, [[[0], [2], [4]]], shard, [0]))
    copies, black = reports
    assert copies["audit_psnr_mean"] > black["audit_psnr_mean"] + 20
    for name in ("held_out_psnr_mean", "held_out_psnr_max", "held_out_from_source"):
        assert copies[name] == black[name]
        assert copies[name] < EXACT_COPY - 20


def test_held_out_from_source_tells_how_often_any_image_meets_those_sources() -> None:
    shard = random_shard(8, classes=1)
    shared = torch.zeros(1, 8, 3, 4, 4, dtype=torch.uint8)
    every, none = [[list(range(8))] * 8], [[[]] * 8]
    assert audit(shared, every, shard, [0])["held_out_from_source"] == 1
    assert audit(shared, none, shard, [0])["held_out_from_source"] == 0


def test_images_made_from_noise_have_no_source_to_be_near_to() -> None:
    shard = random_shard(10)
    report = audit(shard.images[[0, 2]].unsqueeze(0), [[[], []]], shard, [0])
    assert report["audit_psnr_mean"] == pytest.approx(EXACT_COPY, abs=1e-3)
    assert report["audit_from_source"] == 0


@pytest.mark.parametrize("classes", [[], [0]])
def test_a_report_has_the_agreed_scalars_whatever_there_was_to_audit(classes: list[int]) -> None:
    shard = Shard(flat_images(10), torch.tensor([0]), 1)  # one image: nothing to hold out
    shared = torch.zeros(len(classes), 2, 1, 2, 2, dtype=torch.uint8)
    report = copy_audit(shared, torch.zeros(len(classes), 2, 1, dtype=torch.int64), shard, classes, Key(0), CPU)
    Schema(scalars=AUDIT_SCALARS).validate(Payload(scalars=report))
    assert report["audit_images"] == 2 * len(classes)
    assert report["held_out_images"] == 0


def test_pooled_audits_weigh_means_by_images_and_take_maxima() -> None:
    def of_client(images: int, level: float) -> dict[str, float]:
        return {
            **dict.fromkeys(AUDIT_SCALARS, 0.0),
            "audit_images": images,
            "held_out_images": images // 10,
            "audit_psnr_mean": level,
            "audit_psnr_max": level + 5,
            "audit_from_source": level / 100,
            "held_out_psnr_mean": level - 5,
            "held_out_psnr_max": level - 1,
            "held_out_from_source": level / 200,
        }

    pooled = pool_audits(audit_tensor(of_client(*each)) for each in ((10, 20.0), (30, 40.0), (0, 58.0)))
    assert pooled == {
        "images": 40,
        "held_out_images": 4,
        "psnr_mean": pytest.approx(35.0),
        "psnr_max": 45.0,
        "from_source": pytest.approx(0.35),
        "held_out_psnr_mean": pytest.approx(30.0),
        "held_out_psnr_max": 39.0,
        "held_out_from_source": pytest.approx(0.175),
    }


def test_a_client_with_nothing_held_out_does_not_pull_the_held_out_mean_down() -> None:
    figures = dict.fromkeys(AUDIT_SCALARS, 0.0)
    with_some = {**figures, "audit_images": 2, "held_out_images": 2, "held_out_psnr_mean": 15.0}
    with_none = {**figures, "audit_images": 2}
    assert pool_audits([audit_tensor(with_some), audit_tensor(with_none)])["held_out_psnr_mean"] == 15.0


def test_the_audit_of_two_rounds_is_that_of_all_their_images_at_once() -> None:
    shard = Shard(flat_images(10, 50, 200), torch.zeros(3, dtype=torch.int64), 1)
    first, second = flat_images(53).unsqueeze(0), flat_images(190, 12, 90).unsqueeze(0)
    sources = torch.tensor([[[0], [2], [0], [0]]])  # of 53, 190, 12 and 90; the second and third are nearest to theirs
    at_once = copy_audit(torch.cat([first, second], 1), sources, shard, [0], Key(0), CPU)
    before = copy_audit(first, sources[:, :1], shard, [0], Key(0), CPU)
    after = copy_audit(second, sources[:, 1:], shard, [0], Key(0), CPU, audit_tensor(before))
    Schema(scalars=AUDIT_SCALARS).validate(Payload(scalars=after))
    assert (before["audit_images"], after["audit_images"]) == (1, 4)
    assert after["audit_psnr_max"] == pytest.approx(psnr(2), abs=1e-3)
    assert after["audit_from_source"] == pytest.approx(0.5)
    for name in ("audit_images", "audit_psnr_mean", "audit_psnr_max", "audit_from_source"):
        assert after[name] == pytest.approx(at_once[name])
    assert after["held_out_images"] == before["held_out_images"] + 3  # PSNR has a new sample in each round


def test_the_closest_image_of_an_earlier_round_stays_in_the_audit() -> None:
    shard = Shard(flat_images(10, 50), torch.zeros(2, dtype=torch.int64), 1)
    copy, other = (colours.unsqueeze(0) for colours in (flat_images(10), flat_images(200)))
    before = copy_audit(copy, torch.zeros(1, 1, 1), shard, [0], Key(0), CPU)
    after = copy_audit(other, torch.zeros(1, 1, 1), shard, [0], Key(0), CPU, audit_tensor(before))
    assert after["audit_psnr_max"] == pytest.approx(EXACT_COPY, abs=1e-3)


def test_nothing_to_pool_is_an_empty_audit() -> None:
    assert pool_audits([]) == {}


def test_an_audit_of_a_version_without_ratios_is_continued() -> None:
    """Its tensor has the eight figures of PSNR only; the ratios cover the images sent since."""
    shard = photographs(40)
    old = torch.tensor([4, 20.0, 30.0, 0.5, 4, 15.0, 18.0, 0.25], dtype=torch.float64)
    assert pool_audits([old]).keys() == {
        *("images", "psnr_mean", "psnr_max", "from_source", "held_out_images", "held_out_psnr_mean"),
        *("held_out_psnr_max", "held_out_from_source"),
    }
    after = copy_audit(shard.images[None, :2], torch.zeros(1, 2, 1), shard, [0], Key(0), CPU, old)
    assert (after["audit_images"], after["audit_compared"], after["audit_copied"]) == (6, 2, 1)
    pooled = pool_audits([old, audit_tensor(after)])
    assert (pooled["images"], pooled["compared"], pooled["copied"]) == (10, 2, 1)
