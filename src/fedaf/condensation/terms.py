"""The terms of the loss that images are condensed under.

A new term is one function of ``Pairs`` and one line in the ``method_terms`` of a method's condense phase.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaf.condensation.matching import (
    characteristic_distance,
    distribution_matching,
    sliced_wasserstein,
    spread_matching,
)


@dataclass(frozen=True)
class Pairs:
    """What a step offers to a term, for some (client, class) pairs.

    Args:
        real_features: Features of real images, [pairs, real_batch, D].
        real_logits: Their logits, [pairs, real_batch, num_classes]; only if a term asks for them.
        features: Features of the condensed images, [pairs, ipc, D].
        logits: Their logits, [pairs, ipc, num_classes].
        targets: Mean logits v_c from the server, [pairs, 1, num_classes]; only if all jobs have targets.
        directions: Standard normal vectors [D, T], new at every step; only if a term asks for them.
    """

    real_features: Tensor
    real_logits: Tensor | None
    features: Tensor
    logits: Tensor
    targets: Tensor | None
    directions: Tensor | None = None


@dataclass(frozen=True)
class Term:
    """One named term of the image loss.

    Args:
        name: Its name in logs and replies.
        value: Returns the unweighted loss of each pair, a vector. It may run inside a captured CUDA graph, so it must
            neither depend on the values of tensors nor synchronise with the host.
        weight: Its weight in the sum. ``None`` switches the term off: it is not computed and reported as 0.
        real_logits: Whether it needs the logits of real images.
        directions: Whether it needs random directions.
    """

    name: str
    value: Callable[[Pairs], Tensor]
    weight: float | None = 1.0
    real_logits: bool = False
    directions: bool = False


def features_distance(pairs: Pairs) -> Tensor:
    """L_DM (Eq. 4): match the mean features of real and condensed images."""
    return distribution_matching(pairs.real_features, pairs.features)


def spreads_distance(pairs: Pairs) -> Tensor:
    """Match the standard deviations of the features of real and condensed images."""
    return spread_matching(pairs.real_features, pairs.features)


def distributions_distance(pairs: Pairs) -> Tensor:
    """Match the characteristic functions of the features of real and condensed images."""
    if pairs.directions is None:
        raise ValueError("this term needs directions=True")
    return characteristic_distance(pairs.real_features, pairs.features, pairs.directions)


def features_and_logits_distance(pairs: Pairs) -> Tensor:
    """L_DM on features plus L_DM on logits, as an option of FedDM."""
    if pairs.real_logits is None:
        raise ValueError("this term needs real_logits=True")
    return features_distance(pairs) + distribution_matching(pairs.real_logits, pairs.logits)


def targets_distance(pairs: Pairs) -> Tensor:
    """The CDC loss of Eq. 10: match the mean logit u_kc of the condensed images (Eq. 6) with the target v_c (Eq. 8)."""
    if pairs.targets is None:
        raise ValueError("this term needs jobs with targets")
    return sliced_wasserstein(pairs.logits.mean(1, keepdim=True, dtype=torch.float32), pairs.targets)
