"""What the server of a condensing method remembers: the images that it trains on, by client."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class CondensedRecord:
    """The images of one client in use: one row for each upload of a class, the oldest first.

    Args:
        classes: The class of each row, int64 [n].
        images: uint8 [n, ipc, C, H, W].
        samples: The client's number of samples of each row's class, rounded to a power of two, int64 [n]; 1 where the
            method does not use it.
        rounds: The round of each row, int64 [n].
        seen: The last round in which the client replied.
    """

    classes: Tensor
    images: Tensor
    samples: Tensor
    rounds: Tensor
    seen: int

    def adding(self, classes: Tensor, images: Tensor, samples: Tensor, *, round: int, window: int) -> "CondensedRecord":
        """Return the record after another reply, with the last ``window`` uploads of each class."""
        rounds = torch.cat([self.rounds, torch.full_like(classes, round)])
        classes, images = torch.cat([self.classes, classes]), torch.cat([self.images, images])
        samples = torch.cat([self.samples, samples])
        same = classes.unsqueeze(0) == classes.unsqueeze(1)
        kept = same.triu(1).sum(1) < window  # how many later uploads of its class each row has
        return CondensedRecord(classes[kept], images[kept], samples[kept], rounds[kept], round)

    @property
    def latest(self) -> "CondensedRecord":
        """The latest upload of each class, in ascending order of classes."""
        rows = {int(label): row for row, label in enumerate(self.classes)}
        newest = torch.tensor([rows[label] for label in sorted(rows)], dtype=torch.int64)
        return replace(
            self,
            classes=self.classes[newest],
            images=self.images[newest],
            samples=self.samples[newest],
            rounds=self.rounds[newest],
        )


@dataclass(frozen=True)
class CondensedMemory:
    """The images in use, by client, and the copy audit of all images that a client has sent in the run."""

    condensed: Mapping[str, CondensedRecord] = field(default_factory=dict)
    audits: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def in_order(self) -> Mapping[str, CondensedRecord]:
        """The records by client, in the order in which their images make up S, what the server trains on."""
        return dict(sorted(self.condensed.items()))
