"""A condensation's source that has no access to private data: the means of a stored release."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedaf.condensation.jobs import Capacity, Job
from fedaf.condensation.source import Forward
from fedaf.protocol import Task, Tensors


class ReleasedMeans:
    """Returns the released mean feature of each class under the network of the step, as a batch of one."""

    def __init__(self, capacity: Capacity, batch: int, task: Task, forward: Forward, device: torch.device) -> None:
        self._pairs, self._device = capacity.pairs, device
        self._means: Tensor | None = None  # [pairs, networks, D]
        self._current: Tensor | None = None  # [pairs, 1, D]

    def load(self, jobs: Sequence[Job]) -> None:
        """Copy the released means of these clients, pair after pair."""
        means = torch.cat([job.released for job in jobs if job.released is not None])
        if self._means is None or self._current is None:
            self._means = torch.zeros(self._pairs, *means.shape[1:], device=self._device)
            self._current = self._means[:, :1].clone()
        self._means.zero_()
        self._means[: len(means)] = means.to(self._device)

    def draw(self, step: int) -> None:
        """Select the means under the network of a step."""
        assert self._means is not None
        assert self._current is not None
        self._current[:, 0] = self._means[:, step % self._means.shape[1]]

    def outputs(self, weights: Tensors, *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """Return the selected means [pairs, 1, D]."""
        assert self._current is not None
        return self._current, None
