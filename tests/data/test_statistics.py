"""Statistics of a split, compared with closed forms."""

import pytest
import torch

from fedaf.data.dataset import Split
from fedaf.data.statistics import channel_statistics, class_counts, domain_counts, spread


def test_counts_know_classes_and_domains_that_are_empty():
    split = Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 2, 2, 2]), torch.tensor([1, 1, 0, 1]))
    assert class_counts(split, 4) == [1, 0, 3, 0]
    assert domain_counts(split, 3) == [1, 3, 0]


def test_channels_half_black_and_half_white_have_mean_and_deviation_one_half():
    images = torch.zeros(600, 2, 4, 4, dtype=torch.uint8)
    images[:, 0, :2] = 255
    images[:, 1] = 51
    mean, std, count = channel_statistics(Split(images, torch.zeros(600, dtype=torch.long)))
    assert mean == pytest.approx([0.5, 0.2])
    assert std == pytest.approx([0.5, 0.0], abs=1e-6)
    assert count == 600


def test_a_large_split_is_sampled_at_even_distances():
    images = torch.arange(200, dtype=torch.uint8).view(200, 1, 1, 1)
    mean, _, count = channel_statistics(Split(images, torch.zeros(200, dtype=torch.long)), most=4)
    assert count == 4
    assert mean == pytest.approx([(0 + 50 + 100 + 150) / 4 / 255])
    assert spread(3, 10).tolist() == [0, 1, 2]
    assert spread(10, 3).tolist() == [0, 3, 6]
