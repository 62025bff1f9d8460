"""The noise of a release is rounded Gaussian noise of the promised deviation, independent, from the system."""

import math
import os
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chi2, kstest, norm
from torch import Tensor

from fedaf.privacy import noise
from fedaf.privacy.noise import rounded_gaussian, seeded_bytes, system_bytes
from fedaf.privacy.release import LATTICE, add_count_noise, add_noise

CLASSES, NETWORKS, WIDTH, RELEASES = 3, 2, 4, 4000
MULTIPLIER = 1.7
SIGMA = MULTIPLIER * math.sqrt(NETWORKS) * LATTICE
CHANCE = 1e-6  # that a test fails although the noise is right; seeds are fixed, so it never does by chance


@cache
def residuals(factor: float = 1.0) -> NDArray[np.float64]:
    """(Release - sums) / sigma of many releases [releases, classes, networks, D]; ``factor`` is the fault."""
    sums = torch.randint(-(10**9), 10**9, (CLASSES, NETWORKS, WIDTH), generator=torch.Generator().manual_seed(0))
    source = seeded_bytes(1)
    made = torch.stack([add_noise(sums, factor * MULTIPLIER, source) - sums for _ in range(RELEASES)])
    return made.numpy() / SIGMA


def variance_is_right(found: NDArray[np.float64]) -> bool:
    low, high = chi2.ppf([CHANCE, 1 - CHANCE], found.size) / found.size
    return bool(low <= np.square(found).mean() <= high)


def test_residuals_are_normal():
    """On a lattice of a million points per unit, rounded and exact normal numbers cannot be told apart."""
    assert kstest(residuals().ravel(), "norm").pvalue > CHANCE


def test_the_variance_is_within_its_chi_square_bounds():
    assert variance_is_right(residuals())
    for number in range(NETWORKS):  # of each network, as it is of all
        assert variance_is_right(residuals()[:, :, number])


@pytest.mark.parametrize("factor", [0.5, 0.97, 1.03, 1 / math.sqrt(NETWORKS)])
def test_noise_of_another_deviation_is_caught(factor):
    """Half of it, a little less or more, and the noise for one network's sensitivity instead of all."""
    assert not variance_is_right(residuals(factor))
    assert kstest(residuals(factor).ravel(), "norm").pvalue < CHANCE


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.7])
def test_counts_have_the_distribution_of_a_rounded_normal_number(sigma):
    """On the integers the probability of n is that of (n - 1/2, n + 1/2)."""
    drawn = add_count_noise(torch.zeros(200_000, dtype=torch.int64), sigma, seeded_bytes(2))
    found = Counter(drawn.tolist())
    values = np.arange(-12, 13)
    expected = len(drawn) * (norm.cdf(values + 0.5, scale=sigma) - norm.cdf(values - 0.5, scale=sigma))
    common = expected > 20
    statistic = sum((found[int(v)] - e) ** 2 / e for v, e in zip(values[common], expected[common], strict=True))
    assert statistic < chi2.ppf(1 - CHANCE, common.sum())


def correlations(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """All correlations between different columns."""
    found = np.corrcoef(columns, rowvar=False)
    return found[~np.eye(len(found), dtype=bool)]


def most(count: int, releases: int = RELEASES) -> float:
    """Bound on the largest of many correlations of independent numbers, with near certainty."""
    return float(norm.ppf(1 - CHANCE / count) / math.sqrt(releases))


def test_coordinates_networks_and_classes_are_not_correlated():
    columns = residuals().reshape(RELEASES, -1)
    for each in (columns, np.square(columns), np.abs(columns)):  # squares: a shared radius would show there
        found = correlations(each)
        assert np.abs(found).max() < 1.5 * most(len(found))


def test_one_release_is_not_correlated_with_the_next():
    columns = residuals().reshape(RELEASES, -1)
    for earlier, later in ((columns[:-1], columns[1:]), (columns[:-1, ::-1], columns[1:])):
        found = [np.corrcoef(a, b)[0, 1] for a, b in zip(earlier.T, later.T, strict=True)]
        assert np.abs(found).max() < most(len(found))


def test_sums_are_not_correlated_with_counts():
    source, sums, counts = seeded_bytes(3), torch.zeros(1, 1, 4, dtype=torch.int64), torch.zeros(4, dtype=torch.int64)
    made = [
        torch.cat([add_noise(sums, 1.0, source).flatten(), add_count_noise(counts, 50.0, source)]) for _ in range(2000)
    ]
    found = correlations(torch.stack(made).double().numpy())
    assert np.abs(found).max() < most(len(found), 2000)


def test_the_same_noise_for_two_classes_is_caught():
    """The fault: noise of one class, used for all."""
    columns = residuals()[:, :1].repeat(CLASSES, axis=1).reshape(RELEASES, -1)
    assert np.abs(correlations(columns)).max() > 0.99


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_any_number_of_samples_can_be_drawn(size):
    assert rounded_gaussian(1e6, size, seeded_bytes(0)).shape == (size,)


def test_every_sample_has_bytes_of_its_own():
    asked: list[int] = []

    def counted(count: int) -> bytes:
        asked.append(count)
        return system_bytes(count)

    rounded_gaussian(1.0, 1000, counted)
    assert asked == [8000]


@pytest.mark.parametrize(("byte", "largest"), [(b"\x00", 8.6), (b"\xff", 0.0)])
def test_the_ends_of_the_uniform_numbers_are_finite(byte, largest):
    drawn = rounded_gaussian(float(LATTICE), 2, lambda count: byte * count)
    assert drawn.abs().max() <= largest * LATTICE + 1
    assert drawn.abs().max() >= 0.99 * largest * LATTICE


def test_noise_is_from_the_operating_system_unless_a_seed_is_given(monkeypatch):
    drawn: list[int] = []

    def urandom(count: int) -> bytes:
        drawn.append(count)
        return b"\x11" * count

    monkeypatch.setattr(os, "urandom", urandom)
    rounded_gaussian(1.0, 10)
    noise.system_bytes(3)
    assert drawn == [80, 3]


def _two(source: noise.ByteSource) -> tuple[Tensor, Tensor]:
    return rounded_gaussian(float(LATTICE), 1000, source), rounded_gaussian(float(LATTICE), 1000, source)


def test_system_noise_does_not_repeat_and_ignores_pytorchs_seed():
    torch.manual_seed(0)
    first, second = _two(system_bytes)
    torch.manual_seed(0)
    third, _ = _two(system_bytes)
    for a, b in ((first, second), (first, third)):
        assert (a == b).float().mean() < 0.01


def test_a_seed_repeats_its_noise_but_not_within_a_run():
    first, second = _two(seeded_bytes(7))
    again, _ = _two(seeded_bytes(7))
    other, _ = _two(seeded_bytes(8))
    assert torch.equal(first, again)
    assert (first == second).float().mean() < 0.01
    assert (first == other).float().mean() < 0.01
