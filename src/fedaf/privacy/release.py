"""The release: noisy sums of bounded features and noisy counts by class. Everything after it is post-processing.

The unit of privacy is one image of one client. Adding or removing an image changes the sums of one class by a vector
of norm at most sqrt(M) (M blocks of norm at most 1) and one count by 1. Sums are integers on a lattice, so that no
rounding error can depend on the data, and the noise on them is rounded Gaussian noise.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaf.privacy.noise import ByteSource, rounded_gaussian
from fedaf.protocol import Tensors

#: Lattice points per unit of the features.
LATTICE = 1 << 20
_CERTAINTY = 3.0  # standard deviations by which a noisy count must exceed the wanted number of samples
_SHRINK = 1 - 1e-6  # keeps the norm below 1 despite rounding in float32


@dataclass(frozen=True)
class Release:
    """What a client knows about its data after the noise was added; the data themselves are not needed any more.

    Args:
        sums: Noisy sums of bounded features on the lattice, int64 [classes, networks, D].
        counts: Noisy numbers of samples, int64 [classes].
        knowledge: Noisy sums of bounded logits on the lattice, int64 [classes, num_classes], if they are released.
        weights: The global model that the networks and logits are of, where they depend on it.
    """

    sums: Tensor
    counts: Tensor
    knowledge: Tensor | None
    weights: Mapping[str, Tensor]

    def means(self, classes: list[int]) -> Tensor:
        """Return the released mean features of some classes, float32 [len(classes), networks, D]."""
        samples = self.counts[classes].clamp(min=1).double()
        return (self.sums[classes].double() / (LATTICE * samples[:, None, None])).float()

    def noise(self, classes: list[int], multiplier: float) -> Tensor:
        """Return the expected norm of the noise in the mean features of some classes, in the block of one network.

        Args:
            classes: The classes.
            multiplier: Noise multiplier of the sums.
        """
        _, networks, width = self.sums.shape
        return multiplier * math.sqrt(networks * width) / self.counts[classes].clamp(min=1).float()

    def mean_logits(self, classes: list[int]) -> Tensor:
        """Return the released mean bounded logits of some classes, float32 [len(classes), num_classes]."""
        assert self.knowledge is not None, "this release has no logits"
        samples = self.counts[classes].clamp(min=1).double()
        return (self.knowledge[classes].double() / (LATTICE * samples[:, None])).float()

    def classes(self, min_samples: int, noise: float) -> list[int]:
        """Return the classes that have at least ``min_samples`` samples with near certainty, by their noisy counts.

        Args:
            min_samples: The wanted number.
            noise: Standard deviation of the counts' noise.
        """
        least = min_samples + _CERTAINTY * noise
        return [label for label, count in enumerate(self.counts.tolist()) if count >= least]

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the release as named tensors, to store it."""
        stored = {"sums": self.sums, "counts": self.counts}
        if self.knowledge is not None:
            stored["knowledge"] = self.knowledge
        return {**stored, **{f"weights/{name}": tensor for name, tensor in self.weights.items()}}

    @classmethod
    def from_tensors(cls, stored: Tensors) -> "Release":
        """Return the release that ``to_tensors`` wrote."""
        weights = {name.removeprefix("weights/"): t for name, t in stored.items() if name.startswith("weights/")}
        return cls(stored["sums"], stored["counts"], stored.get("knowledge"), weights)


def on_lattice(bounded: Tensor) -> Tensor:
    """Return feature vectors [..., D] as integers, each of norm at most ``LATTICE``.

    Values that are not finite become 0. Vectors are truncated towards zero, which never lengthens them.

    Raises:
        AssertionError: A vector is longer. The release is then not made.
    """
    finite = torch.where(bounded.isfinite(), bounded, 0.0).double()
    finite = finite / finite.norm(dim=-1, keepdim=True).clamp(min=1)
    points: Tensor = (finite * (_SHRINK * LATTICE)).trunc().long()
    if bool((points.square().sum(-1) > LATTICE * LATTICE).any()):
        raise AssertionError("a feature vector exceeds the bound that the guarantee rests on")
    return points


def class_sums(blocks: Iterable[Tensor], labels: Tensor, num_classes: int) -> Tensor:
    """Return the sums of lattice points by class, int64 [classes, blocks, D].

    Args:
        blocks: Bounded features [N, D] of one network after another.
        labels: The class of each image [N].
        num_classes: The number of classes; classes without images have sum 0.
    """
    sums = []
    for features in blocks:
        of_block = torch.zeros(num_classes, features.shape[1], dtype=torch.int64)
        sums.append(of_block.index_add_(0, labels, on_lattice(features)))
    return torch.stack(sums, dim=1)


def add_noise(sums: Tensor, multiplier: float, source: ByteSource) -> Tensor:
    """Return sums [classes, blocks, D] with Gaussian noise for the sensitivity of all blocks together."""
    sigma = multiplier * math.sqrt(sums.shape[1]) * LATTICE
    return sums + rounded_gaussian(sigma, sums.numel(), source).reshape(sums.shape)


def add_count_noise(counts: Tensor, multiplier: float, source: ByteSource) -> Tensor:
    """Return counts [classes] with Gaussian noise; an image changes one of them by 1."""
    return counts + rounded_gaussian(multiplier, counts.numel(), source)
