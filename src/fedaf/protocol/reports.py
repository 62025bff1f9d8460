"""What a method says about itself: shared images, the work of a round, and what a round discloses."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Exhibit:
    """Images that a client shared, for people to look at.

    Args:
        classes: The class of each row.
        images: uint8 [classes, images per class, C, H, W].
    """

    classes: list[int]
    images: Tensor


@dataclass(frozen=True)
class Workload:
    """The work of one round, to estimate its time.

    Args:
        forward: Images that pass through the model without a backward pass.
        backward: Images that pass through the model with a backward pass.
    """

    forward: float
    backward: float


@dataclass(frozen=True)
class Guarantee:
    """A guarantee of differential privacy for one image of one client, which is added or removed.

    Args:
        epsilon: Epsilon of everything that a client releases in a run.
        delta: Delta of the guarantee.
        simulated: Whether the noise comes from a seed that the server chooses, so that nothing is guaranteed.
    """

    epsilon: float
    delta: float
    simulated: bool = False


@dataclass(frozen=True)
class Disclosure:
    """What one round reveals about a client, to be checked against its policy.

    Args:
        fewest_samples: The smallest number of samples behind anything that is sent; 0 if nothing is sent.
        images: Condensed images by class.
        local_steps: Condensation steps before images are sent.
        initialisation: What condensed images start from: ``mean`` (of random images in the first round, then the images
            of the round before), ``new means`` (of random images in every round), ``clusters``, ``noise`` or ``real``.
        privacy: The guarantee under which everything is sent; ``None`` without differential privacy.
    """

    fewest_samples: int
    images: Mapping[int, int] = field(default_factory=dict)
    local_steps: int = 0
    initialisation: str = ""
    privacy: Guarantee | None = None
