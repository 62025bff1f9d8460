"""Canaries: images that are in the private data of an audited run with probability 1/2 each."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaf.protocol import Key, Task


@dataclass(frozen=True)
class Canaries:
    """Images whose membership an audit guesses.

    Args:
        images: uint8 [m, C, H, W].
        labels: int64 [m].
        included: Whether each is in, bool [m].
    """

    images: Tensor
    labels: Tensor
    included: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def black_and_white(cls, task: Task, count: int, key: Key) -> "Canaries":
        """Draw outliers: every pixel of every channel is 0 or 255, and labels go through all classes in turn.

        Nothing else looks like them, so a release that depends on single images shows them best.
        """
        shape = (count, *task.image_shape)
        images = torch.randint(0, 2, shape, generator=key.derive("pixels").torch(), dtype=torch.uint8) * 255
        return cls(images, torch.arange(count) % task.num_classes, _coins(count, key))

    @classmethod
    def natural(cls, images: Tensor, labels: Tensor, key: Key) -> "Canaries":
        """Take real images, which the run must not have from elsewhere."""
        return cls(images, labels, _coins(len(labels), key))

    @property
    def members(self) -> tuple[Tensor, Tensor]:
        """The images and labels of the canaries that are in."""
        return self.images[self.included], self.labels[self.included]


def _coins(count: int, key: Key) -> Tensor:
    return torch.rand(count, generator=key.derive("included").torch()) < 0.5
