"""A data set as the rest of the package sees it, wherever it came from."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaf.protocol import Key, UserError


@dataclass(frozen=True)
class Split:
    """Images uint8 [N, C, H, W] with labels int64 [N]. The images may be a view of a file: only rows that are taken are
    read. ``domains`` int64 [N] says where each image comes from, in data sets that tell."""

    images: Tensor
    labels: Tensor
    domains: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Split":
        return Split(self.images[rows], self.labels[rows], None if self.domains is None else self.domains[rows])


@dataclass(frozen=True)
class DataSet:
    """Training and test split, the names behind their numbers, and constants to normalise with. ``unreadable`` names
    the files that were left out because no image could be read from them."""

    name: str
    train: Split
    test: Split
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def with_validation(data: DataSet, count: int) -> DataSet:
    """The data set with ``count`` of its training images, always the same, in place of the test split: to choose
    settings by, so that the test split is not used up."""
    if count >= len(data.train):
        raise UserError(f"data.validation is {count}, but {data.name} has only {len(data.train)} training images.")
    order = torch.randperm(len(data.train), generator=Key(0).derive("validation").torch())
    held_out, rest = order[:count].sort().values, order[count:].sort().values
    return replace(data, train=data.train.take(rest), test=data.train.take(held_out))
