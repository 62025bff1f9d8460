"""Shared images beside the private images that are nearest to them: for the owner of the data, and nobody else."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST_ERROR = 1 / 12  # mean squared error of rounding


@dataclass(frozen=True)
class Neighbours:
    """A shared image and the private images of its class that are nearest to it.

    Args:
        label: The class.
        shared: uint8 [C, H, W].
        nearest: uint8 [n, C, H, W], the nearest first.
        psnr: The similarity of each in dB; higher is closer.
    """

    label: int
    shared: Tensor
    nearest: Tensor
    psnr: list[float]


def neighbours(
    shared: tuple[Tensor, Tensor], private: tuple[Tensor, Tensor], *, per_class: int = 3, nearest: int = 3
) -> list[Neighbours]:
    """Return the shared images that are closest to a private image of their class, with their nearest private images.

    Args:
        shared: uint8 images [n, C, H, W] and their labels.
        private: The images that they were made from, and their labels.
        per_class: Shared images of each class: those that are most similar to a private one.
        nearest: Private images beside each.
    """
    (images, labels), (real, real_labels) = shared, private
    found = []
    for label in labels.unique().tolist():
        mine, theirs = images[labels == label], real[real_labels == label]
        if not len(theirs):
            continue
        error = torch.cdist(mine.flatten(1).double(), theirs.flatten(1).double()).square() / mine[0].numel()
        for row in error.amin(1).argsort()[:per_class].tolist():
            order = error[row].argsort()[:nearest]
            psnr = [10 * math.log10(255**2 / max(_SMALLEST_ERROR, value)) for value in error[row][order].tolist()]
            found.append(Neighbours(int(label), mine[row], theirs[order], psnr))
    return found
