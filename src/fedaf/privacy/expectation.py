"""What to expect of a run with differential privacy, before it starts. No PyTorch is imported."""

import math
from typing import TYPE_CHECKING

from fedaf.privacy.accountant import Budget, expected_rho
from fedaf.privacy.options import PrivacyOptions

if TYPE_CHECKING:
    from fedaf.protocol import Task

LITTLE, HOPELESS = 0.3, 1.0  # rho up to which little is lost, and from which a run is expected to fail
_SHRINKS = 8  # times that the last map of a release's networks is smaller than the image
_SEPARATION_GREY, _SEPARATION_COLOUR = 0.47, 0.19  # measured on digits and on CIFAR-10
ADVICE = "use a larger epsilon, a smaller ipc, smaller images, fewer releases, or more data per class"


def directions(privacy: PrivacyOptions, ipc: int, shape: tuple[int, int, int]) -> int:
    """Return the directions in which the images of a class can fit noise: their pixels, or the features if fewer.

    Args:
        privacy: The options of the run.
        ipc: Condensed images per class.
        shape: Channels, height and width of an image.
    """
    _, height, width = shape
    positions = math.ceil(height / _SHRINKS) * math.ceil(width / _SHRINKS)
    return min(ipc * math.prod(shape), privacy.networks * privacy.width * positions)


def rho_of(budget: Budget, samples: int, dimensions: int, channels: int) -> float:
    """Return ``expected_rho`` with the separation of classes that was measured for grey or colour images."""
    return expected_rho(
        budget.sums_noise, samples, dimensions, _SEPARATION_GREY if channels == 1 else _SEPARATION_COLOUR
    )


def enough_samples(budget: Budget, dimensions: int, channels: int) -> int:
    """Return the samples of a class at which a run is no longer expected to fail."""
    return math.ceil(rho_of(budget, 1, dimensions, channels) / HOPELESS)


def hopeless(privacy: PrivacyOptions, samples: int, ipc: int, task: "Task") -> str | None:
    """Return a warning if the noise is expected to hide even the largest class; ``None`` if not.

    Args:
        privacy: The options of the run.
        samples: The samples of the largest class of a client.
        ipc: Condensed images per class.
        task: The shape of images.
    """
    budget, dimensions = Budget.of(privacy), directions(privacy, ipc, task.image_shape)
    rho = rho_of(budget, samples, dimensions, task.channels)
    if rho <= HOPELESS:
        return None
    return (
        f"WARNING: with epsilon {budget.epsilon:g} and at most {samples} samples of a class at a client, the noise is "
        f"expected to hide the data (rho {rho:.2g}, fedaf privacy plan explains it): {ADVICE}. About "
        f"{enough_samples(budget, dimensions, task.channels)} samples would do."
    )
