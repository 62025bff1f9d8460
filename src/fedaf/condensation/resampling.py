"""The networks that images are condensed under: the global model blended with a fresh one, or moved at random."""

import torch
from torch import Tensor

from fedaf.protocol import Tensors


def resample(weights: Tensors, fresh: Tensors, gamma: float) -> dict[str, Tensor]:
    """w <- gamma w + (1 - gamma) w~ for every parameter in ``fresh``; the rest (running statistics) stays."""
    return {name: torch.lerp(fresh[name], w, gamma) if name in fresh else w for name, w in weights.items()}


def perturb(weights: Tensors, direction: Tensors, rho: float) -> dict[str, Tensor]:
    """w <- w + rho g / ||g|| for every parameter in ``direction``, the norm taken over all of them; the rest stays."""
    norm = torch.stack([g.square().sum() for g in direction.values()]).sum().sqrt()
    return {name: w + rho / norm * direction[name] if name in direction else w for name, w in weights.items()}
