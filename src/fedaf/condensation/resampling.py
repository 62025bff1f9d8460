"""Model re-sampling: condense under the global model blended with a fresh one."""

import torch
from torch import Tensor

from fedaf.protocol import Tensors


def resample(weights: Tensors, fresh: Tensors, gamma: float) -> dict[str, Tensor]:
    """w <- gamma w + (1 - gamma) w~ for every parameter in ``fresh``; the rest (running statistics) stays."""
    return {name: torch.lerp(fresh[name], w, gamma) if name in fresh else w for name, w in weights.items()}
