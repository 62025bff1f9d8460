"""The one-run membership audit: guess which canaries a release was made from, and bound epsilon by the guesses.

A canary is an image that is in the private data with probability 1/2. The auditor scores every canary against what was
released and guesses that those with the highest scores are in. Under differential privacy few such guesses can be
right, so many right guesses give a lower bound on epsilon. One run is enough, because it has many canaries (Steinke,
Nasr and Jagielski, "Privacy auditing with one training run", 2023). Nothing here reads or writes files.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.stats import rankdata
from torch import Tensor

from fedaf.privacy.canaries import Canaries
from fedaf.privacy.one_run_bounds import epsilon_bound, gaussian_bound

_SMALLEST_VARIANCE = 1e-12
#: Shares of the canaries that are called in. They are fixed in advance; the bounds pay for trying several.
GUESSED_SHARES = (0.05, 0.15, 0.5)


@dataclass(frozen=True)
class Population:
    """Features of images that the audited run did not use: what a release would be like without any canary.

    Args:
        mean: Mean feature by class [classes, D].
        residuals: Features minus the mean of their class [n, D].
        shrinkage: Weight of the identity in the covariance, between 0 and 1.
    """

    mean: Tensor
    residuals: Tensor
    shrinkage: float = 0.1

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, num_classes: int, shrinkage: float = 0.1) -> "Population":
        """Return the population of features [n, D] with these labels [n]. A class without images has mean 0."""
        features = features.double()
        sums = torch.zeros(num_classes, features.shape[1], dtype=torch.float64).index_add_(0, labels, features)
        mean = sums / torch.bincount(labels, minlength=num_classes).clamp(min=1).unsqueeze(1)
        return cls(mean, features - mean[labels], shrinkage)

    def whitened(self, features: Tensor, others: Tensor | None = None, extra_variance: float = 0.0) -> Tensor:
        """Return Sigma^-1 x for each row x of ``features`` [m, D].

        Sigma = (1 - s) S + (s tr(S) / D + extra_variance) I + others^T others, with S the covariance within classes. It
        is not formed if D is larger than n, and D may be far larger.
        """
        count, width = max(1, len(self.residuals)), self.residuals.shape[1]
        ridge = self.shrinkage * float(self.residuals.square().sum()) / count / width + extra_variance
        rows = self.residuals * math.sqrt((1 - self.shrinkage) / count)
        rows = rows if others is None else torch.cat([rows, others])
        ridge = max(ridge, _SMALLEST_VARIANCE)
        if width <= len(rows):
            sigma = rows.T @ rows + ridge * torch.eye(width, dtype=rows.dtype)
            direct: Tensor = torch.linalg.solve(sigma, features.T).T
            return direct
        inner = rows @ rows.T + ridge * torch.eye(len(rows), dtype=rows.dtype)
        woodbury: Tensor = (features - torch.linalg.solve(inner, rows @ features.T).T @ rows) / ridge
        return woodbury


def membership_scores(
    canary_features: Tensor,
    labels: Tensor,
    population: Population,
    released: Tensor,
    samples: Sequence[int] | None = None,
    extra_variance: float = 0.0,
) -> Tensor:
    """Return how much a release points toward each canary: <Sigma_c^-1 (phi(x) - pop_c), R_c - E_c>.

    Without ``samples``, E_c is the population's mean pop_c, and Sigma_c its covariance Sigma. With ``samples``, the
    scores also allow for the other canaries, which have much in common and would hide each other: each of the canaries
    phi_j of a class of n images is in with probability 1/2, so E_c = pop_c + sum of (phi_j - pop_c) / (2 n), and
    Sigma_c = Sigma + sum of (phi_j - pop_c) (phi_j - pop_c)^T / (4 n).

    Args:
        canary_features: Features of the canaries [m, D].
        labels: Their classes [m].
        population: Means and covariance of images outside the run.
        released: What the run released of each class [classes, D]: the mean feature of its shared images, or a noisy
            class mean. A class of which nothing was released has NaN; its canaries score 0.
        samples: Private images of each class without the canaries.
        extra_variance: Variance that the release adds to a feature, times the number of images of the class.

    Returns:
        One score per canary, float64 [m]; higher means more likely in.
    """
    scores = torch.zeros(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        rows = labels == label
        directions = canary_features[rows].double() - population.mean[label]
        toward, others = released[label].double() - population.mean[label], None
        if not toward.isfinite().all():
            continue
        if samples is not None:
            size = samples[label] + len(directions) / 2
            toward, others = toward - directions.sum(0) / (2 * size), directions / math.sqrt(4 * size)
        scores[rows] = population.whitened(directions, others, extra_variance) @ toward
    return scores


def auc(scores: Tensor, included: Tensor) -> float:
    """Return the chance that a canary that is in scores above one that is out; ties count half."""
    members = int(included.sum())
    others = len(included) - members
    if not members or not others:
        return 0.5
    ranks = rankdata(scores.double().numpy())
    return float((ranks[included.numpy()].sum() - members * (members + 1) / 2) / (members * others))


@dataclass(frozen=True)
class Membership:
    """How well the canaries were told apart.

    Args:
        canaries: Number of canaries.
        included: Number of canaries that were in.
        auc: Area under the ROC curve of the scores; 0.5 is chance.
        guesses: Number of canaries that were called in, for the best bound.
        correct: Number of right guesses among them.
        epsilon: Lower bound on epsilon for any mechanism.
        gaussian_epsilon: Lower bound on epsilon for mechanisms that add Gaussian noise.
        delta: The delta of both bounds.
        confidence: The confidence of each bound.
    """

    canaries: int
    included: int
    auc: float
    guesses: int
    correct: int
    epsilon: float
    gaussian_epsilon: float
    delta: float
    confidence: float


def measure(
    scores: Tensor,
    included: Tensor,
    *,
    delta: float = 1e-5,
    confidence: float = 0.95,
    shares: Sequence[float] = GUESSED_SHARES,
    kinds: int = 1,
) -> Membership:
    """Guess by scores which canaries are in, and bound epsilon by the guesses.

    Args:
        scores: One score per canary, as ``membership_scores`` returns them.
        included: Whether each canary was in, bool [m].
        delta: The delta of the bounds.
        confidence: The confidence of each bound.
        shares: Shares of the canaries with the highest scores that are called in, fixed in advance.
        kinds: Kinds of scores that are measured for the same run, of which the best is reported.
    """
    count, order = len(scores), scores.argsort(descending=True, stable=True)
    found = []
    for guesses in (max(1, round(share * count)) for share in shares):
        correct = int(included[order[:guesses]].sum())
        counts = guesses, correct, count, delta, confidence, kinds * len(shares)
        found.append((epsilon_bound(*counts), gaussian_bound(*counts), correct / guesses, guesses, correct))
    general, gaussian = max(row[0] for row in found), max(row[1] for row in found)
    *_, guesses, correct = max(found, key=lambda row: (row[0], row[1], row[2]))
    members = int(included.sum())
    return Membership(count, members, auc(scores, included), guesses, correct, general, gaussian, delta, confidence)


def audit_release(
    canaries: Canaries,
    features: Callable[[Tensor], Tensor],
    population: Population,
    released: Tensor,
    samples: Sequence[int] | None = None,
    *,
    extra_variance: float = 0.0,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> Membership:
    """Audit released class means directly, without condensed images.

    Args:
        canaries: The canaries; those that are in were part of the release.
        features: Returns the features [n, D] of uint8 images, as the release has them: clipped if it clips.
        population: Features of images outside the release.
        released: The released mean of each class [classes, D].
        samples: Private images of each class without the canaries.
        extra_variance: Variance of the noise on a class mean, times the number of images of the class.
        delta: The delta of the bounds.
        confidence: The confidence of each bound.
    """
    found = features(canaries.images)
    scores = membership_scores(found, canaries.labels, population, released, samples, extra_variance)
    return measure(scores, canaries.included, delta=delta, confidence=confidence)
