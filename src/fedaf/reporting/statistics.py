"""Statistics over seeds: the mean and its spread, and paired differences between methods.

Every command that compares methods uses ``paired_difference``, so that a verdict means the same everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

CONFIDENCE = 0.95


class Verdict(StrEnum):
    """What the differences over seeds say about a method, compared with another one."""

    BETTER = "better"
    WORSE = "worse"
    #: The interval covers zero: these seeds do not show which one is better.
    UNDECIDED = "undecided"
    #: One seed says nothing about the spread over seeds.
    NONE = "no verdict"


@dataclass(frozen=True)
class PairedDifference:
    """The difference of one figure between two methods, over the seeds that both were run with.

    Args:
        seeds: Number of seeds.
        mean: Mean of the differences.
        deviation: Their sample standard deviation; ``None`` for one seed.
        low: Lower end of the interval of the mean; ``None`` for one seed.
        high: Upper end.
        verdict: The conclusion.
    """

    seeds: int
    mean: float
    deviation: float | None
    low: float | None
    high: float | None
    verdict: Verdict


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation (n - 1), or ``None`` if there are fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def mean_and_deviation(values: Sequence[float], digits: int = 2) -> str:
    """Format the mean and, if there are several values, their sample standard deviation: ``92.48 ± 1.20``."""
    if not values:
        return ""
    spread = deviation(values)
    return f"{fmean(values):.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def mean_curve(curves: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the figure by round, averaged over runs; ``None`` where it is unknown in one of them.

    Rounds that not all runs have are left out.
    """
    by_round = zip(*curves, strict=False)
    return [None if None in values else fmean(v for v in values if v is not None) for values in by_round]


def paired_difference(
    method: Mapping[int, float], other: Mapping[int, float], *, higher_is_better: bool = True
) -> PairedDifference | None:
    """Compare a figure of two methods, seed by seed.

    With the same seed both methods have the same split and the same initial model, so the differences vary less than
    the figures themselves. The interval of their mean is that of Student's t distribution with n - 1 degrees of
    freedom, at 95 %: mean ± t deviation / √n.

    Args:
        method: The figure of the method to judge, by seed.
        other: The figure of the method to compare it with, by seed.
        higher_is_better: Whether a larger figure is better, as for an accuracy.

    Returns:
        The difference ``method - other``, or ``None`` if no seed is in both. With one seed there is no verdict.
    """
    differences = [value - other[seed] for seed, value in method.items() if seed in other]
    if not differences:
        return None
    mean, spread, count = fmean(differences), deviation(differences), len(differences)
    if spread is None:
        return PairedDifference(count, mean, None, None, None, Verdict.NONE)
    half = t_quantile(0.5 + CONFIDENCE / 2, count - 1) * spread / math.sqrt(count)
    low, high = mean - half, mean + half
    verdict = Verdict.UNDECIDED
    if low > 0 or high < 0:
        verdict = Verdict.BETTER if (low > 0) == higher_is_better else Verdict.WORSE
    return PairedDifference(count, mean, spread, low, high, verdict)


def t_quantile(probability: float, degrees: int) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.special import stdtrit  # takes a moment to import, and only comparisons need it

    return float(stdtrit(degrees, probability))
