"""The clients' share of a condensation, and how clients are grouped so that a group fits the memory budget."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from fedaf.condensation.options import CondensationOptions
from fedaf.models.backbone import Backbone
from fedaf.protocol import Engine, Key, Shard

_MOST_PAIRS = 64  # per group; this many keep a GPU busy


@dataclass(frozen=True)
class Job:
    """One client's condensation.

    Args:
        shard: The client's data.
        classes: The classes to condense.
        images: Normalised images to start from, [classes, ipc, C, H, W].
        key: Source of the client's random draws.
        targets: Mean logits v_c of those classes, averaged over all clients (Eq. 8), for terms that need them.
        rows: The rows of the shard that the images of each class match; ``None``: all of the class.
        released: Stored mean features of those classes, [classes, networks, D], for a source that reads no data.
        rates: Factors of the learning rate of each class [classes]; ``None``: 1.
    """

    shard: Shard
    classes: list[int]
    images: Tensor
    key: Key
    targets: Tensor | None = None
    rows: Sequence[Tensor] | None = None
    released: Tensor | None = None
    rates: Tensor | None = None

    @cached_property
    def matched(self) -> Sequence[Tensor]:
        """The rows of the shard that the images of each class match."""
        return [self.shard.rows_of(label) for label in self.classes] if self.rows is None else self.rows


@dataclass(frozen=True)
class Capacity:
    """The buffer sizes that a group of clients needs, and whether there are buffers for targets and rates."""

    clients: int
    pairs: int
    real_images: int
    targets: bool
    rates: bool = False

    @classmethod
    def of(cls, *groups: Sequence[Job]) -> "Capacity":
        """Return the capacity that holds any one of these groups."""
        clients = max(len(jobs) for jobs in groups)
        pairs = max(sum(len(job.classes) for job in jobs) for jobs in groups)
        real_images = max(sum(len(rows) for job in jobs for rows in job.matched) for jobs in groups)
        targets = all(job.targets is not None for jobs in groups for job in jobs)
        return cls(clients, pairs, real_images, targets, any(job.rates is not None for jobs in groups for job in jobs))


def group_jobs(
    jobs: Sequence[Job], backbone: Backbone, options: CondensationOptions, engine: Engine
) -> list[list[Job]]:
    """Split the jobs into groups of whole clients, in order.

    With batch statistics in BatchNorm each client is a group, because clients must not share statistics. Otherwise
    there are few groups with few unused places, since all groups use buffers of the largest one's size. A group may
    exceed its share of the memory budget by less than one client; the slices of a step still keep to the budget.
    """
    if options.bn_mode == "batch":
        return [[job] for job in jobs]
    fit = next((part.stop for part in engine.chunks(_MOST_PAIRS, options.ipc * backbone.activation_bytes)), 1)
    largest = max((len(job.classes) for job in jobs), default=0)
    return min((_fill_groups(jobs, most_pairs) for most_pairs in range(fit + largest, 0, -1)), key=_cost)


def _cost(groups: Sequence[Sequence[Job]]) -> int:
    """Return the cost of these groups in pairs; a step of a group costs as much as one pair more than it has places."""
    return len(groups) * (1 + max((sum(len(job.classes) for job in group) for group in groups), default=0))


def _fill_groups(jobs: Sequence[Job], most_pairs: int) -> list[list[Job]]:
    """Fill groups one after another up to ``most_pairs``; a larger client gets a group for itself."""
    groups: list[list[Job]] = []
    free = 0
    for job in jobs:
        if not groups or len(job.classes) > free:
            groups.append([])
            free = most_pairs
        groups[-1].append(job)
        free -= len(job.classes)
    return groups
