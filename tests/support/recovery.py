"""Attacks that try to recover private images of a class from the images that a client shared in all rounds.

Condensed images start as means of k private images. An attacker who collects enough of them has more equations than
unknown images. Images here are float32 with values from 0 to 255: private ones [N, pixels], shared ones
[rounds, ipc, pixels], members (rows of the private images that a mean was made of) [rounds, ipc, k], padded with
``NO_SOURCE``.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from fedaf.condensation.initialisation import NO_SOURCE

_RIDGES = (0.001, 0.1, 1.0)  # an attacker does not know how far condensation moved the images, and tries several


def random_members(samples: int, k: int, rounds: int, ipc: int, generator: torch.Generator) -> Tensor:
    """Draw the members of means of random images."""
    picks = [torch.randperm(samples, generator=generator)[:k] for _ in range(rounds * ipc)]
    return torch.stack(picks).view(rounds, ipc, k)


def means(private: Tensor, members: Tensor) -> Tensor:
    """Return the means as a client without condensation steps would send them: rounded to whole numbers."""
    return private[members].mean(2).round()


def denoised(shared: Tensor, k: int) -> Tensor:
    """Attack 2: average each shared image with its nearest ones, and extrapolate the difference to them.

    Two means that differ in one member differ by (x - x') / k.
    """
    images = shared.flatten(0, 1)
    nearest = torch.cdist(images, images).topk(10, largest=False).indices  # each image is its own nearest
    averaged = [images[nearest[:, :count]].mean(1) for count in (2, 5, 10)]
    differences = [images + k * (images - images[nearest[:, other]]) for other in (1, 2)]
    return torch.cat([*averaged, *differences]).clamp(0, 255)


def unmixed(shared: Tensor, samples: int, k: int, steps: int = 100) -> Tensor:
    """Attack 3: factorise the shared images into members and private images, without knowing either.

    Who is a member of which mean is as good as independent, with a skewed distribution: k of N. Independent component
    analysis finds such factors. Two steps then alternate until nothing changes: private images from members by least
    squares, and members from private images as the k largest coefficients.

    Args:
        shared: The shared images.
        samples: Number of private images N, which the attacker knows or tries.
        k: Images in a mean.
        steps: Most repetitions of the two steps.
    """
    centred = _without_round_means(shared).flatten(0, 1)
    directions = torch.linalg.svd(centred, full_matrices=False).U
    found = []
    for rank in (samples // 2, samples - 1):
        members = _start(directions[:, : min(rank, len(directions) - 1)], samples, k)
        for _ in range(steps):
            images = _least_squares(shared, members, _RIDGES[0])
            again = _members_of(shared, members, images, k)
            if torch.equal(again, members):
                break
            members = again
        found += [_least_squares(shared, members, ridge) for ridge in _RIDGES]
    return torch.cat(found)


def solved(shared: Tensor, members: Tensor, samples: int) -> Tensor:
    """Attack 4: least squares by an attacker who knows the members of each mean."""
    rows = members.flatten(0, 1)
    weights = (rows != NO_SOURCE) / (rows != NO_SOURCE).sum(1, keepdim=True)
    known = torch.zeros(len(rows), samples).scatter_add_(1, rows.clamp(min=0), weights)
    return torch.cat([_least_squares(shared, known, ridge) for ridge in _RIDGES])


def _start(directions: Tensor, samples: int, k: int) -> Tensor:
    """Return a first guess of the members [means, N], from the singular vectors of the shared images."""
    try:
        factors = _skewed_factors(directions, cubic=0.0)
    except (ValueError, np.linalg.LinAlgError):  # it diverged
        factors = _skewed_factors(directions, cubic=0.1)
    members = torch.zeros(len(directions), samples)
    members[:, : factors.shape[1]].scatter_(
        0, factors.topk(max(1, len(directions) * k // samples), dim=0).indices, 1 / k
    )
    return members


def _skewed_factors(directions: Tensor, cubic: float) -> Tensor:
    """Return independent factors with the most skewed distributions; a cubic part of the contrast keeps it stable."""

    def contrast(u: Any) -> tuple[Any, Any]:
        return u**2 + cubic * u**3, (2 * u + 3 * cubic * u**2).mean(-1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        ica = FastICA(whiten=False, fun=contrast, max_iter=200, tol=1e-3, random_state=0)
        factors = torch.from_numpy(ica.fit_transform((directions * len(directions) ** 0.5).double().numpy())).float()
    return factors * factors.pow(3).mean(0).sign()


def _least_squares(shared: Tensor, members: Tensor, ridge: float) -> Tensor:
    """Return the private images that explain the shared ones best, up to one offset per round."""
    rounds, ipc, _ = shared.shape
    members = _without_round_means(members.view(rounds, ipc, -1)).flatten(0, 1)
    gram = members.T @ members
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram))
    images = torch.linalg.solve(gram, members.T @ _without_round_means(shared).flatten(0, 1))
    return (images - images.mean(0) + shared.mean((0, 1))).clamp(0, 255)


def _members_of(shared: Tensor, members: Tensor, images: Tensor, k: int) -> Tensor:
    """Return the members that explain the shared images best, given the private images."""
    mean = shared.mean((0, 1))
    centred = images - mean
    offset = (shared - mean - (members @ centred).view(shared.shape)).mean(1, keepdim=True)
    gram = centred @ centred.T
    gram += 0.001 * gram.diagonal().mean() * torch.eye(len(gram))
    weights = torch.linalg.solve(gram, centred @ (shared - mean - offset).flatten(0, 1).T).T
    return torch.zeros_like(weights).scatter_(1, weights.topk(k, dim=1).indices, 1 / k)


def _without_round_means(values: Tensor) -> Tensor:
    """Subtract the mean of each round: condensation moves all images of a round in similar ways."""
    return values - values.mean(1, keepdim=True)


@dataclass(frozen=True)
class Score:
    """How far an attack gets.

    Args:
        recovered: Share of private images that are recovered beyond chance. Chance is the 99th percentile of two
            baselines that know nothing of an image: how close to the private images as many real images come that the
            client does not hold, or their mean; and how close the candidates come to such images.
        gain: Median over private images of the PSNR of the best candidate minus that of the first baseline, in dB.
        median: Median PSNR of the best candidates, in dB.
        highest: Highest PSNR of any candidate, in dB.
    """

    recovered: float
    gain: float
    median: float
    highest: float


def score(private: Tensor, others: Tensor, candidates: Tensor) -> Score:
    """Score the candidates of an attack.

    Args:
        private: The private images.
        others: Real images of the same class that the client does not hold.
        candidates: What the attack found.
    """
    found = _best(private, candidates)
    baseline = _best(private, torch.cat([others[: len(candidates)], others.mean(0, keepdim=True)]))
    chance = max(baseline.quantile(0.99), _best(others, candidates).quantile(0.99))
    return Score(
        recovered=float((found > chance).float().mean()),
        gain=float((found - baseline).median()),
        median=float(found.median()),
        highest=float(found.max()),
    )


def _best(images: Tensor, candidates: Tensor) -> Tensor:
    """Return the PSNR of each image to its best candidate; an exact copy has 58.9 dB."""
    error = torch.cdist(images, candidates).min(1).values.square() / images.shape[1]
    return 10 * torch.log10(255**2 / error.clamp(min=1 / 12))
