"""Where a condensation takes the real features from that it matches."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from fedaf.condensation.jobs import Capacity, Job
from fedaf.data.pixels import take
from fedaf.models.backbone import Backbone
from fedaf.protocol import Engine, Task, Tensors


class Forward:
    """Forward passes of a condensation: in the engine's precision, with running or batch statistics."""

    def __init__(self, backbone: Backbone, engine: Engine, *, batch_statistics: bool) -> None:
        self._backbone, self._engine, self._batch_statistics = backbone, engine, batch_statistics

    def __call__(self, weights: Tensors, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits."""
        with self._engine.autocast():
            return self._backbone(weights, images, batch_statistics=self._batch_statistics)

    def features(self, weights: Tensors, images: Tensor) -> Tensor:
        with self._engine.autocast():
            return self._backbone.features(weights, images, batch_statistics=self._batch_statistics)

    def slices(self, count: int, images: int) -> list[slice]:
        """Split ``count`` items of ``images`` images each to fit the memory budget; batch statistics need them all."""
        if self._batch_statistics:
            return [slice(0, count)]
        return list(self._engine.chunks(count, images * self._backbone.activation_bytes))


class Source(Protocol):
    """What a condensation matches. A condensation reads private data through its source only."""

    def load(self, jobs: Sequence[Job]) -> None:
        """Take in a group of clients."""

    def draw(self, step: int) -> None:
        """Prepare a step."""

    def outputs(self, weights: Tensors, *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """Return real features [pairs, n, D] under the network of the step and, if wanted, their logits.

        It may run inside a captured CUDA graph, so it reads only buffers that keep their address.
        """


#: Makes a source for groups of some capacity, with batches of some size per pair.
SourceFactory = Callable[[Capacity, int, Task, Forward, torch.device], Source]


class RealBatches:
    """A source of fresh batches of real images at every step, drawn with replacement from each client's own data."""

    def __init__(self, capacity: Capacity, batch: int, task: Task, forward: Forward, device: torch.device) -> None:
        self._batch, self._task, self._forward = batch, task, forward
        self._pool = torch.zeros(capacity.real_images, *task.image_shape, dtype=torch.uint8, device=device)
        self._starts = torch.zeros(capacity.pairs, 1, dtype=torch.int64, device=device)
        self._counts = torch.ones(capacity.pairs, 1, dtype=torch.int64, device=device)
        self._uniform = torch.zeros(capacity.pairs, batch, device=device)
        self._slices = forward.slices(capacity.pairs * batch, 1)
        self._draws: list[tuple[slice, torch.Generator]] = []

    def load(self, jobs: Sequence[Job]) -> None:
        """Copy the images of these clients into the pool, pair after pair."""
        self._starts.zero_()
        self._counts.fill_(1)
        self._draws = []
        pair = row = 0
        for job in jobs:
            generator = job.key.derive("draws").torch(self._pool.device)
            self._draws.append((slice(pair, pair + len(job.classes)), generator))
            for rows in job.matched:
                images = job.shard.images[rows]
                self._pool[row : row + len(images)] = images
                self._starts[pair], self._counts[pair] = row, len(images)
                pair, row = pair + 1, row + len(images)

    def draw(self, step: int) -> None:
        """Choose the real images of the next step, each client's with its own key."""
        for pairs, generator in self._draws:
            self._uniform[pairs].uniform_(generator=generator)

    @torch.no_grad()
    def outputs(self, weights: Tensors, *, logits: bool) -> tuple[Tensor, Tensor | None]:
        """Return the features [pairs, batch, D] of the chosen images and, if wanted, their logits."""
        picks = (self._uniform * self._counts).long().minimum(self._counts - 1)
        rows = (self._starts + picks).flatten()
        batches = (take(self._pool, rows[part], self._task.mean, self._task.std) for part in self._slices)
        if not logits:
            return self._by_pair([self._forward.features(weights, batch) for batch in batches]), None
        features, all_logits = zip(*(self._forward(weights, batch) for batch in batches), strict=True)
        return self._by_pair(features), self._by_pair(all_logits)

    def _by_pair(self, parts: Sequence[Tensor]) -> Tensor:
        by_pair: Tensor = concatenate(parts).unflatten(0, (-1, self._batch))
        return by_pair


def concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate without a copy if there is only one part."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
