"""Statistics over seeds, against closed forms and SciPy's tests."""

import math

import numpy as np
import pytest
from scipy import stats

from fedaf.reporting.statistics import (
    PairedDifference,
    Verdict,
    deviation,
    mean_and_deviation,
    paired_difference,
    t_quantile,
)


@pytest.mark.parametrize(
    ("degrees", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_quantiles_are_those_of_the_printed_tables(degrees, quantile):
    assert t_quantile(0.975, degrees) == pytest.approx(quantile, abs=5e-5)


def test_deviation_is_of_a_sample():
    assert deviation([1.0, 2.0, 3.0]) == 1.0
    assert deviation([4.0]) is None
    assert mean_and_deviation([1.0, 2.0, 3.0]) == "2.00 ± 1.00"
    assert mean_and_deviation([90.0, 91.0], digits=1) == "90.5 ± 0.7"
    assert mean_and_deviation([4.0]) == "4.00"
    assert mean_and_deviation([]) == ""


def test_the_interval_by_hand():
    """Differences 1, 2, 3: mean 2, deviation 1, half width 4.3027 / sqrt 3."""
    found = paired_difference({0: 11.0, 1: 22.0, 2: 33.0}, {0: 10.0, 1: 20.0, 2: 30.0})
    half = 4.302653 / math.sqrt(3)
    assert (found.seeds, found.mean, found.deviation) == (3, 2.0, 1.0)
    assert (found.low, found.high) == (pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5))
    assert found.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize("seed", range(5))
def test_interval_and_verdict_agree_with_the_paired_t_test(seed):
    rng = np.random.default_rng(seed)
    ours, theirs = rng.normal(1.0, 1.0, 6), rng.normal(0.0, 1.0, 6)
    test = stats.ttest_rel(ours, theirs)
    interval = test.confidence_interval(0.95)
    found = paired_difference(dict(enumerate(ours.tolist())), dict(enumerate(theirs.tolist())))
    assert (found.low, found.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert (found.verdict is Verdict.UNDECIDED) == (test.pvalue > 0.05)


def test_verdicts_follow_from_the_interval_and_from_what_is_better():
    low, high = {0: 1.0, 1: 1.1, 2: 0.9}, {0: 5.0, 1: 5.2, 2: 4.9}
    assert paired_difference(high, low).verdict is Verdict.BETTER
    assert paired_difference(low, high).verdict is Verdict.WORSE
    assert paired_difference(low, high, higher_is_better=False).verdict is Verdict.BETTER
    assert paired_difference(high, low, higher_is_better=False).verdict is Verdict.WORSE
    assert paired_difference({0: 1.0, 1: 3.0}, {0: 2.0, 1: 2.0}).verdict is Verdict.UNDECIDED
    assert paired_difference(low, low).verdict is Verdict.UNDECIDED


def test_one_seed_has_a_difference_and_no_verdict():
    assert paired_difference({3: 90.0}, {3: 10.0}) == PairedDifference(1, 80.0, None, None, None, Verdict.NONE)


def test_seeds_are_paired_by_their_number_and_others_are_left_out():
    found = paired_difference({2: 12.0, 0: 10.0, 9: 99.0}, {0: 9.0, 2: 11.0, 7: 50.0})
    assert (found.seeds, found.mean, found.deviation) == (2, 1.0, 0.0)
    assert found.verdict is Verdict.BETTER
    assert paired_difference({0: 1.0}, {1: 1.0}) is None
