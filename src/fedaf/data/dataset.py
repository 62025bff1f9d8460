"""A loaded data set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedaf.protocol import Key, UserError


@dataclass(frozen=True)
class Split:
    """Images uint8 [N, C, H, W], labels int64 [N] and, if the data set has them, domains and clients int64 [N].

    The images may be a view of a file: only rows that are taken are read. ``clients`` says which client each training
    image comes from; a test split has none.
    """

    images: Tensor
    labels: Tensor
    domains: Tensor | None = None
    clients: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Split":
        """Return some rows."""
        domains, clients = (None if numbers is None else numbers[rows] for numbers in (self.domains, self.clients))
        return Split(self.images[rows], self.labels[rows], domains, clients)


@dataclass(frozen=True)
class DataSet:
    """Training and test split, names of classes, domains and natural clients, and normalisation constants.

    ``unreadable`` names the image files that were left out because they could not be decoded. ``selection`` holds the
    images that were set aside to choose the best model by.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    selection: Split | None = None


def class_names(classes: Sequence[str], count: int) -> tuple[str, ...]:
    """Return the names of ``count`` classes: their numbers as text if they have no names."""
    return tuple(classes) or tuple(map(str, range(count)))


def with_test(data: DataSet, other: DataSet) -> DataSet:
    """Return data that are tested on another data set, with its normalisation. Domains are no longer known.

    Args:
        data: The data to train on, such as a condensed set.
        other: The data set of which the test split is used.

    Raises:
        UserError: The images have another shape, or the classes are others or in another order.
    """
    shapes = [tuple(each.train.images.shape[1:]) for each in (data, other)]
    names = [class_names(each.classes, each.num_classes) for each in (data, other)]
    code = "FEDAF-DATA-TEST"
    if shapes[0] != shapes[1]:
        what = f"{data.name} has images of shape {shapes[0]}, but data.test is {other.name} with {shapes[1]}"
        raise UserError(f"{what}; test on the data set that the images were condensed from.", code=code)
    if names[0] != names[1]:
        shown = [f"{', '.join(each[:5])}{', ...' if len(each) > 5 else ''}" for each in names]
        what = f"{data.name} has the classes {shown[0]}, but data.test is {other.name} with {shown[1]}"
        raise UserError(f"{what}; use the same class names in the same order.", code=code)
    train, test = replace(data.train, domains=None), Split(other.test.images, other.test.labels)
    return replace(data, train=train, test=test, mean=other.mean, std=other.std, domains=())


def with_validation(data: DataSet, count: int) -> DataSet:
    """Hold out ``count`` training images as the test set, for tuning. They are the same in every run."""
    if count >= len(data.train):
        what = f"data.validation is {count}, but {data.name} has only {len(data.train)} training images; lower it."
        raise UserError(what, code="FEDAF-DATA-VALIDATION")
    held_out, rest = _drawn(data.train, count, Key(0).derive("validation"))
    return replace(data, train=rest, test=held_out)


def with_selection(data: DataSet, count: int) -> DataSet:
    """Set ``count`` training images aside to choose the best model by. They are the same in every run."""
    if count >= len(data.train):
        what = f"data.selection is {count}, but {data.name} has only {len(data.train)} training images left; lower it."
        raise UserError(what, code="FEDAF-DATA-SELECTION")
    set_aside, rest = _drawn(data.train, count, Key(0).derive("selection"))
    return replace(data, train=rest, selection=set_aside)


def _drawn(split: Split, count: int, key: Key) -> tuple[Split, Split]:
    """Return ``count`` random rows, and the others."""
    order = torch.randperm(len(split), generator=key.torch())
    return split.take(order[:count].sort().values), split.take(order[count:].sort().values)
