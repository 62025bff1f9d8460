"""A data set as the rest of the package sees it, wherever it came from."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images uint8 [N, C, H, W] with labels int64 [N]. The images may be a view of a file: only rows that are taken are
    read. ``domains`` int64 [N] says where each image comes from, in data sets that tell."""

    images: Tensor
    labels: Tensor
    domains: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)


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
