"""Lower bounds on epsilon from guesses in one run: how many right guesses differential privacy permits."""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from fedaf.privacy.accountant import epsilon_of

_LARGEST_EPSILON = 50.0
_LARGEST_MU = 20.0
_HALVINGS = 50


def epsilon_bound(
    guesses: int, correct: int, canaries: int, delta: float, confidence: float = 0.95, sizes: int = 1
) -> float:
    """Return a lower bound on epsilon from guesses in one run (Steinke et al. 2023, Theorem 5.2).

    For an (epsilon, delta)-private mechanism, the chance of at least ``correct`` right guesses is at most
    ``beta + 2 canaries delta alpha``. Here ``beta`` is P[Bin >= correct] and ``alpha`` is the maximum over i of
    P[correct > Bin >= correct - i] / i, for Bin = Bin(guesses, e^epsilon / (1 + e^epsilon)).

    Args:
        guesses: Number of canaries that the auditor made a guess for.
        correct: Number of right guesses.
        canaries: Number of all canaries.
        delta: The delta of the guarantee that is audited.
        confidence: The bound is wrong with a probability of at most ``1 - confidence``.
        sizes: Numbers of guesses that were tried, of which the best is reported.

    Returns:
        The largest epsilon that the guesses refute; 0 if they refute none.
    """
    _check_counts(guesses, correct, canaries)
    level = (1 - confidence) / sizes
    return _largest(lambda epsilon: _tail(guesses, correct, canaries, epsilon, delta) < level, _LARGEST_EPSILON)


def gaussian_bound(
    guesses: int, correct: int, canaries: int, delta: float, confidence: float = 0.95, sizes: int = 1
) -> float:
    """Return a lower bound on epsilon for mechanisms with a Gaussian trade-off curve, from guesses of "in" only.

    A mechanism that adds Gaussian noise is mu-GDP: it has the trade-off curve f(x) = Phi(Phi^-1(1 - x) - mu). This is
    more than one pair of epsilon and delta says, so the bound is tighter than ``epsilon_bound`` (Mahloujifar, Melis and
    Chaudhuri, "Auditing f-differential privacy in one run", 2025). For other mechanisms it is not a valid bound.

    Args:
        guesses: Number of canaries that were called in. No canary may be called out.
        correct: Number of right guesses.
        canaries: Number of all canaries.
        delta: The delta at which mu is converted to epsilon.
        confidence: The bound is wrong with a probability of at most ``1 - confidence``.
        sizes: Numbers of guesses that were tried, of which the best is reported.

    Returns:
        The epsilon at ``delta`` of the largest mu that the guesses refute; 0 if they refute none.
    """
    _check_counts(guesses, correct, canaries)
    level = (1 - confidence) / sizes
    if not correct:
        return 0.0
    return epsilon_of(_largest(lambda mu: _refutes(guesses, correct, canaries, mu, level), _LARGEST_MU), delta)


def _check_counts(guesses: int, correct: int, canaries: int) -> None:
    if not 0 <= correct <= guesses <= canaries:
        raise ValueError(f"{correct} right of {guesses} guesses for {canaries} canaries is impossible")


def _largest(holds: Callable[[float], bool], end: float) -> float:
    """Return the largest number below ``end`` for which a condition holds that gets harder to meet; 0 if none."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, end
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _tail(guesses: int, correct: int, canaries: int, epsilon: float, delta: float) -> float:
    """Return the largest chance of this many right guesses under (epsilon, delta)-privacy."""
    q = 1 / (1 + math.exp(-epsilon))
    beta = float(binom.sf(correct - 1, guesses, q))
    if not correct:
        return 1.0
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, q))  # P[correct > Bin >= correct - i]
    alpha = float((below / np.arange(1, correct + 1)).max())
    return min(1.0, beta + 2 * canaries * delta * alpha)


def _refutes(guesses: int, correct: int, canaries: int, mu: float, level: float) -> bool:
    """Return whether this many right guesses have a chance below ``level`` under mu-GDP.

    Let p_j be the chance of exactly j right guesses, right_j = sum over i >= j of i p_i / m, and
    wrong_j = sum over i >= j of (guesses - i) p_i / m, with m canaries. Fix all canaries but one, and take the event
    that this one is called in and at least j - 1 others are guessed right. With the canary in, it counts to right_j;
    with the canary out, to wrong_{j-1}. Each has probability 1/2, so for F(x) = 1 - f(x), which is concave,

        2 right_j <= F(2 wrong_{j-1}).

    If also out was guessed, only the weaker right_j <= F(wrong_{j-1}) of the paper would hold. Starting from a tail
    P[at least ``correct``] = level, this gives the least p_j for every j below. If they sum to more than 1, then no
    mu-GDP mechanism has such a tail.
    """
    right, wrong = level * correct / canaries, level * (guesses - correct) / canaries
    whole = guesses / canaries
    for j in range(correct - 1, -1, -1):
        if 2 * right >= 1:
            return True
        needed = max(wrong, float(ndtr(ndtri(2 * right) - mu)) / 2)
        right, wrong = right + j / (guesses - j) * (needed - wrong), needed
        if right + wrong > whole:
            return True
    return False
