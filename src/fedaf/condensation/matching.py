"""The distances that condensed images minimise. Equation numbers of FedAF."""

import torch
from torch import Tensor

_EPSILON = 1e-12  # under the root: the gradient at 0 would be infinite
_FREQUENCY = 3.0  # chosen on held-out images; larger values see finer differences between distributions


def distribution_matching(real: Tensor, synthetic: Tensor) -> Tensor:
    """Return L_DM of each class (Eq. 4): the squared distance of mean features, from [..., n, D] and [..., m, D]."""
    return (_mean(real) - _mean(synthetic)).square().sum(-1)


def spread_matching(real: Tensor, synthetic: Tensor) -> Tensor:
    """Return the squared distance of the features' standard deviations, from [..., n, D] and [..., m, D]."""
    return (_spread(real) - _spread(synthetic)).square().sum(-1)


def characteristic_distance(real: Tensor, synthetic: Tensor, directions: Tensor) -> Tensor:
    """Return the squared distance of the characteristic functions of two sets of points, averaged over frequencies.

    The characteristic function E[exp(i t . x)] describes a distribution completely, whereas the mean describes only its
    first moment. Points are measured in units of the root mean square distance between two real points. The result is
    scaled such that at low frequencies it is the squared distance of the means, in the points' own units; at these
    frequencies, a small shift of a broad distribution costs about a hundredth of that.

    Args:
        real: Points [..., n, D].
        synthetic: Points [..., m, D].
        directions: Standard normal vectors [D, T]; the frequencies t are ``_FREQUENCY`` times as long.
    """
    real, synthetic = (_at_least_float32(points) for points in (real, synthetic))
    with torch.no_grad():
        centre = real.mean(-2, keepdim=True)
        unit = (2 * real.var(-2, correction=0).sum(-1) + _EPSILON).sqrt()
    frequencies = _FREQUENCY * directions
    phases = [((points - centre) / unit[..., None, None]) @ frequencies for points in (real, synthetic)]
    cosines, sines = ([function(phase).mean(-2) for phase in phases] for function in (torch.cos, torch.sin))
    squares = (cosines[0] - cosines[1]).square() + (sines[0] - sines[1]).square()
    return squares.mean(-1) * (unit / _FREQUENCY).square()


def sliced_wasserstein(x: Tensor, y: Tensor, directions: Tensor | None = None) -> Tensor:
    """Return the sliced Wasserstein distance of order 2, F of Eq. 10.

    Args:
        x: Points [..., n, C].
        y: Points [..., m, C].
        directions: Unit vectors [L, C] to average over. Without them, both sets must be single points; the distance is
            then exact, because the mean of ((u - v) . theta)^2 over the sphere is ||u - v||^2 / C.

    Raises:
        ValueError: There are no directions, and a set has more than one point.
    """
    if directions is None:
        if x.shape[-2] != 1 or y.shape[-2] != 1:
            raise ValueError("sets of more than one point need directions")
        return ((x - y).squeeze(-2).square().mean(-1) + _EPSILON).sqrt()
    along_x = (x @ directions.T).sort(dim=-2).values
    along_y = (y @ directions.T).sort(dim=-2).values
    n, m = x.shape[-2], y.shape[-2]
    # Both quantile functions are constant between consecutive multiples of 1/n and 1/m. In units of 1/(n m) these
    # breaks are integers.
    breaks = torch.unique(torch.cat([torch.arange(n + 1) * m, torch.arange(m + 1) * n])).to(x.device)
    widths = breaks.diff().to(x.dtype) / (n * m)
    gap = along_x[..., breaks[:-1] // m, :] - along_y[..., breaks[:-1] // n, :]
    squared = (gap.square() * widths.unsqueeze(-1)).sum(-2)
    return torch.sqrt(squared.mean(-1) + _EPSILON)


def _spread(points: Tensor) -> Tensor:
    """Return the standard deviation, without Bessel's correction, in at least float32."""
    return (_at_least_float32(points).var(-2, correction=0) + _EPSILON).sqrt()


def _mean(points: Tensor) -> Tensor:
    """Return the mean in at least float32."""
    return points.mean(-2, dtype=torch.promote_types(points.dtype, torch.float32))


def _at_least_float32(points: Tensor) -> Tensor:
    return points.to(torch.promote_types(points.dtype, torch.float32))
