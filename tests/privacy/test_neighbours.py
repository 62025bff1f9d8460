"""Shared images beside their nearest private ones."""

import torch

from fedaf.privacy.neighbours import neighbours


def image(value: int) -> torch.Tensor:
    return torch.full((1, 4, 4), value, dtype=torch.uint8)


def test_the_nearest_of_the_same_class_come_first():
    private = torch.stack([image(value) for value in (0, 90, 100, 130, 101)])
    labels = torch.tensor([0, 0, 0, 0, 1])
    (found,) = neighbours((image(100).unsqueeze(0), torch.tensor([0])), (private, labels), nearest=3)
    assert [int(each[0, 0, 0]) for each in found.nearest] == [100, 90, 130]
    assert found.psnr == sorted(found.psnr, reverse=True)
    assert found.psnr[0] > 58  # an exact copy
    assert abs(found.psnr[1] - 28.13) < 0.01  # 10 log10(255^2 / 10^2)


def test_the_shared_images_that_are_most_similar_to_a_private_one_are_chosen():
    shared = torch.stack([image(value) for value in (50, 99, 10)])
    private = (torch.stack([image(100), image(0)]), torch.tensor([3, 3]))
    found = neighbours((shared, torch.tensor([3, 3, 3])), private, per_class=2)
    assert [int(each.shared[0, 0, 0]) for each in found] == [99, 10]
    assert [each.label for each in found] == [3, 3]
