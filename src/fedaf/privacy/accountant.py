"""The accountant of Gaussian noise: how epsilon, delta and noise depend on each other. No PyTorch is imported.

The unit of privacy is one image of one client. Two data sets are neighbours if one has an image that the other lacks
(add or remove). A release adds Gaussian noise of deviation sigma to a sum that one image moves by at most the
sensitivity. Everything about a series of such releases is in one number, mu, with mu^2 the sum of
(sensitivity / sigma)^2. It adds up even if a release depends on earlier ones, or its budget does.

"Gaussian differential privacy" (Dong, Roth and Su, 2022) has the formula, and "Improving the Gaussian mechanism"
(Balle and Wang, 2018) has its use for noise.
"""

import math
from dataclasses import dataclass

from fedaf.errors import UserError
from fedaf.privacy.options import PrivacyOptions

_NARROW = 1.0  # below this mu, two Mills ratios would be too close to subtract
_TAIL = 3.0  # from here on the continued fraction of the Mills ratio is exact to the last digit
_FRACTION_TERMS = 200
_UNDERFLOW = 38.6  # the normal density is zero from here on
# Nodes and weights of Gauss-Legendre quadrature with ten points on [-1, 1], which is symmetric.
_QUADRATURE = (
    (0.14887433898163122, 0.29552422471475287),
    (0.43339539412924719, 0.26926671930999636),
    (0.67940956829902441, 0.21908636251598204),
    (0.86506336668898451, 0.14945134915058059),
    (0.97390652851717172, 0.06667134430868814),
)


@dataclass(frozen=True)
class Budget:
    """What a client's releases in one run cost together, and the noise of each.

    Noise is given as a multiplier: the deviation of the noise divided by the sensitivity to one image.

    Args:
        epsilon: Epsilon of all releases together, for adding or removing one image.
        delta: Delta of the guarantee.
        mu: The parameter of all releases together.
        release_mu: The parameter of one release.
        sums_noise: Noise multiplier of the sums of features, in each release.
        counts_noise: Noise multiplier of the number of samples of each class, in each release. Its sensitivity is 1.
        knowledge_noise: Noise multiplier of the sums of logits; ``None`` if they are not released.
        replace_one_epsilon: Epsilon of the same releases if neighbours differ in the content of one image.
    """

    epsilon: float
    delta: float
    mu: float
    release_mu: float
    sums_noise: float
    counts_noise: float
    knowledge_noise: float | None
    replace_one_epsilon: float

    @property
    def z(self) -> float:
        """The noise multiplier of one release that has the whole budget."""
        return 1 / self.mu

    @classmethod
    def of(cls, options: PrivacyOptions) -> "Budget":
        """Divide the budget of a run.

        Args:
            options: The ``[privacy]`` table, with an epsilon.

        Raises:
            UserError: Epsilon is not set.
        """
        if options.epsilon is None:
            raise UserError(
                "privacy.epsilon is not set, so there is no budget; set it to a number such as 4.",
                code="FEDAF-PRIVACY-OFF",
            )
        mu = mu_of(options.epsilon, options.delta)
        release_mu = mu / math.sqrt(options.releases)

        def noise(share: float) -> float:
            return 1 / (math.sqrt(share) * release_mu)

        return cls(
            epsilon=options.epsilon,
            delta=options.delta,
            mu=mu,
            release_mu=release_mu,
            sums_noise=noise(options.feature_share),
            counts_noise=noise(options.count_share),
            knowledge_noise=noise(options.knowledge_share) if options.knowledge_share else None,
            replace_one_epsilon=epsilon_of(2 * mu, options.delta),  # a replaced image moves a sum twice as far
        )


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which releases of parameter mu are (epsilon, delta)-private.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), with a relative error below 1e-12. A delta that
    is too small for a float is 0.

    Args:
        epsilon: At least 0.
        mu: At least 0.

    Example:
        >>> delta_of(1.0, 0.5)
        0.0068...
    """
    if not epsilon >= 0 or not mu >= 0:
        raise ValueError(f"epsilon is {epsilon} and mu is {mu}; expected numbers of at least 0")
    if mu == 0 or epsilon == math.inf:
        return 0.0
    half, middle = mu / 2, epsilon / mu
    if middle - half > _UNDERFLOW:
        return 0.0
    # e^epsilon times the density at the second argument is the density at the first, so it is a common factor.
    density = math.exp(-((middle - half) ** 2) / 2) / math.sqrt(2 * math.pi) if abs(middle - half) < _UNDERFLOW else 0.0
    if mu < _NARROW:
        slopes = (weight * (_slope(middle + half * x) + _slope(middle - half * x)) for x, weight in _QUADRATURE)
        return density * half * math.fsum(slopes)
    if middle > half:
        return density * (_mills(middle - half) - _mills(middle + half))
    return 0.5 * math.erfc((middle - half) / math.sqrt(2)) - density * _mills(middle + half)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which releases of parameter mu are (epsilon, delta)-private.

    Args:
        mu: At least 0.
        delta: Between 0 and 1, both excluded.
    """
    _check_delta(delta)
    if delta_of(0.0, mu) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_of(high, mu) > delta:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if delta_of(middle, mu) <= delta else (middle, high)
    return high


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu whose releases are (epsilon, delta)-private: the inverse of ``epsilon_of``.

    Args:
        epsilon: Above 0.
        delta: Between 0 and 1, both excluded.
    """
    _check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon is {epsilon}; expected a finite number above 0")
    low, high = 0.0, 1.0
    while delta_of(epsilon, high) <= delta:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if delta_of(epsilon, middle) <= delta else (low, middle)
    return low


def compose(*mus: float) -> float:
    """Return the parameter of several releases of the same data together.

    Args:
        mus: The parameter of each release.
    """
    return math.hypot(*mus)


def expected_rho(z: float, samples: int, dimensions: int, separation: float) -> float:
    """Return the noise of a class mean, divided by the distance between class means: a rule of thumb for usefulness.

    Condensed images can fit the noise in as many directions as they have degrees of freedom. Above 1 the noise is
    larger than what tells classes apart.

    Args:
        z: Noise multiplier of the sums.
        samples: Samples of the class.
        dimensions: Degrees of freedom of the images of a class, or dimensions of the features if these are fewer.
        separation: Typical distance between class means, divided by the clipping norm.
    """
    return z * math.sqrt(dimensions) / (samples * separation)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}; expected a number between 0 and 1")


def _mills(x: float) -> float:
    """Return the upper tail of the normal distribution at x, divided by its density there."""
    if x > _TAIL:
        return 1 / (x + _fraction(x))
    return math.sqrt(math.pi / 2) * math.erfc(x / math.sqrt(2)) * math.exp(x * x / 2)


def _slope(x: float) -> float:
    """Return how fast the Mills ratio falls at x: 1 - x times the ratio, without its cancellation at large x."""
    return _fraction(x) * _mills(x) if x > _TAIL else 1 - x * _mills(x)


def _fraction(x: float) -> float:
    """Return 1/(x + 2/(x + 3/(x + ...)))."""
    value = 0.0
    for k in range(_FRACTION_TERMS, 0, -1):
        value = k / (x + value)
    return value
