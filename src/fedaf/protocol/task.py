"""What is to be learned, and one client's data for it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Task:
    """What is to be learned.

    Args:
        dataset: Name of the data set.
        channels: Channels of an image.
        height: Height of an image.
        width: Width of an image.
        num_classes: Number of classes.
        mean: Mean per channel for normalisation, from the catalog or the user, never from clients' data.
        std: Standard deviation per channel.
        augment: Augmentations of training images, the same for every method of a comparison.
    """

    dataset: str
    channels: int
    height: int
    width: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (self.channels, self.height, self.width)


@dataclass(frozen=True)
class Shard:
    """One client's private data.

    Args:
        images: uint8 [N, C, H, W].
        labels: int64 [N].
        num_classes: Number of classes of the task, not only of this client.
        test: The client's test data, if it has any.
    """

    images: Tensor
    labels: Tensor
    num_classes: int
    test: "Shard | None" = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> list[int]:
        """Number of samples per class."""
        return torch.bincount(self.labels, minlength=self.num_classes).tolist()

    def rows_of(self, label: int) -> Tensor:
        """Return the indices of the samples of one class."""
        return (self.labels == label).nonzero().squeeze(1)
