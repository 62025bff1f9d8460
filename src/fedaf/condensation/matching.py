"""The two distances a condensed image is pulled by."""

import torch
from torch import Tensor

_EPSILON = 1e-12  # under the root: without it the gradient at equality is infinite


def distribution_matching(real: Tensor, synthetic: Tensor) -> Tensor:
    """L_DM of each class: the squared distance of the mean features, from [..., n, D] and [..., m, D]."""
    return (_mean(real) - _mean(synthetic)).square().sum(-1)


def sliced_wasserstein(x: Tensor, y: Tensor, directions: Tensor | None = None) -> Tensor:
    """SWD of order 2 between point sets [..., n, C] and [..., m, C], averaged over unit ``directions`` [L, C].

    Without directions the sets must be single points; their distance is then exact: the mean of ((u - v) . theta)^2
    over the sphere is ||u - v||^2 / C.
    """
    if directions is None:
        if x.shape[-2] != 1 or y.shape[-2] != 1:
            raise ValueError("sets of more than one point need directions to project on")
        return ((x - y).squeeze(-2).square().mean(-1) + _EPSILON).sqrt()
    along_x = (x @ directions.T).sort(dim=-2).values
    along_y = (y @ directions.T).sort(dim=-2).values
    n, m = x.shape[-2], y.shape[-2]
    # Both quantile functions are constant between consecutive multiples of 1/n and 1/m. In units of 1/(n m) the
    # breaks are whole numbers.
    breaks = torch.unique(torch.cat([torch.arange(n + 1) * m, torch.arange(m + 1) * n])).to(x.device)
    widths = breaks.diff().to(x.dtype) / (n * m)
    gap = along_x[..., breaks[:-1] // m, :] - along_y[..., breaks[:-1] // n, :]
    squared = (gap.square() * widths.unsqueeze(-1)).sum(-2)
    distance: Tensor = (squared.mean(-1) + _EPSILON).sqrt()
    return distance


def _mean(points: Tensor) -> Tensor:
    """In float32, however the points were computed."""
    return points.mean(-2, dtype=torch.promote_types(points.dtype, torch.float32))
