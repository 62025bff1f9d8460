"""The condensation loop, for any number of clients at once.

With one network for all clients of a step and running statistics in its BatchNorm, the loss is a sum over
(client, class) pairs that do not touch each other. So the pairs of all clients are laid side by side and go through
the network together; the result for each is that of condensing it alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaf.condensation.matching import distribution_matching, sliced_wasserstein
from fedaf.condensation.options import CondensationOptions
from fedaf.data.pixels import normalise
from fedaf.models.backbone import Backbone
from fedaf.protocol import Engine, Key, Shard, Task, Tensors


@dataclass(frozen=True)
class Job:
    """One client's share of the work: its data, the classes to condense, images to start from, and its key.
    ``targets`` are the peers' mean logits of those classes for CDC, or ``None`` without it."""

    shard: Shard
    classes: list[int]
    images: Tensor
    key: Key
    targets: Tensor | None = None


@dataclass(frozen=True)
class Condensed:
    """A client's images after the last step, and what that step measured: mean losses by class and the ratio of
    the weighted CDC gradient to the DM gradient."""

    images: Tensor
    loss_dm: float
    loss_cdc: float
    gradient_ratio: float


def condense(
    jobs: Sequence[Job],
    *,
    backbone: Backbone,
    weights_at: Callable[[int], Tensors],
    options: CondensationOptions,
    task: Task,
    engine: Engine,
    lambda_loc: float = 0.0,
    match_logits: bool = False,
) -> list[Condensed]:
    """Minimise L_loc = L_DM + lambda_loc * SWD over the images of all jobs with ``options.local_steps`` steps of SGD,
    the network of each step having the weights ``weights_at(step)``. With ``match_logits`` L_DM counts the mean logits
    too, beside the mean features."""
    device = engine.device
    owners = torch.tensor([j for j, job in enumerate(jobs) for _ in job.classes], device=device)
    images = torch.cat([job.images.to(device) for job in jobs])
    velocity = torch.zeros_like(images)
    pairs = _Pairs(jobs, owners, options, lambda_loc, match_logits, task, device)
    slices = _Slices(jobs, engine, options, backbone.activation_bytes)
    measured = torch.zeros(3, len(jobs), device=device)

    for step in range(options.local_steps if len(owners) else 0):
        last = step == options.local_steps - 1
        weights = weights_at(step)
        draws = pairs.draw()
        gradient = torch.empty_like(images)
        for part in slices:
            terms = pairs.terms(backbone, weights, images[part], draws[part], part)
            gradient[part] = torch.autograd.grad(terms.total, terms.images, retain_graph=last)[0]
            if last:
                measured += pairs.measure(terms, part, len(jobs))
        if options.image_clip is not None:
            gradient *= _clip_factors(gradient, owners, len(jobs), options.image_clip)
        velocity.mul_(options.image_momentum).add_(gradient)
        images.sub_(velocity, alpha=options.image_lr)
        engine.tick(step + 1, options.local_steps)

    sizes = [len(job.classes) for job in jobs]
    dm, cdc, ratio = measured.cpu().tolist()
    return [
        Condensed(part, dm[j], cdc[j], ratio[j]) for j, part in enumerate(torch.split(images.detach().cpu(), sizes))
    ]


@dataclass(frozen=True)
class _Terms:
    images: Tensor
    dm: Tensor
    cdc: Tensor
    total: Tensor


class _Pairs:
    """All (client, class) pairs side by side: one pool of real images, and for each pair the rows it draws from."""

    def __init__(
        self,
        jobs: Sequence[Job],
        owners: Tensor,
        options: CondensationOptions,
        lambda_loc: float,
        match_logits: bool,
        task: Task,
        device: torch.device,
    ) -> None:
        self._owners, self._lambda, self._match_logits, self._task = owners, lambda_loc, match_logits, task
        self._batch, self._ipc, self._batch_statistics = options.real_batch, options.ipc, options.bn_mode == "batch"
        self._sizes = [len(job.classes) for job in jobs]
        self._generators = [job.key.fold("draws").torch(device) for job in jobs]
        self._pool = torch.cat([job.shard.images.to(device) for job in jobs])
        rows: list[Tensor] = []
        starts: list[int] = []
        counts: list[int] = []
        offset = 0
        for job in jobs:
            for label in job.classes:
                mine = job.shard.rows_of(label) + offset
                starts.append(sum(counts))
                counts.append(len(mine))
                rows.append(mine)
            offset += len(job.shard)
        self._rows = torch.cat([*rows, torch.empty(0, dtype=torch.int64)]).to(device)
        self._starts = torch.tensor(starts, device=device, dtype=torch.int64).unsqueeze(1)
        self._counts = torch.tensor(counts, device=device, dtype=torch.int64).unsqueeze(1)
        with_targets = [job.targets for job in jobs if job.targets is not None]
        self._targets = torch.cat(with_targets).to(device) if len(with_targets) == len(jobs) else None

    def draw(self) -> Tensor:
        """Row numbers [pairs, real_batch] of real images, each client's from its own key, with replacement."""
        uniform = torch.cat(
            [
                torch.rand(size, self._batch, generator=generator, device=generator.device)
                for size, generator in zip(self._sizes, self._generators, strict=True)
            ]
        )
        picks = (uniform * self._counts).long().minimum(self._counts - 1)
        return self._rows[self._starts + picks]

    def terms(self, backbone: Backbone, weights: Tensors, images: Tensor, draws: Tensor, part: slice) -> _Terms:
        """The losses of one slice of pairs, each a vector over them, with a graph back to their images."""
        count, batch_statistics = len(images), self._batch_statistics
        real = normalise(self._pool[draws.flatten()], self._task.mean, self._task.std)
        with torch.no_grad():
            real_features, real_logits = backbone(weights, real, batch_statistics=batch_statistics)
        images = images.requires_grad_()
        features, logits = backbone(weights, images.flatten(0, 1), batch_statistics=batch_statistics)
        dm = distribution_matching(real_features.view(count, self._batch, -1), features.view(count, self._ipc, -1))
        if self._match_logits:
            dm = dm + distribution_matching(real_logits.view(count, self._batch, -1), logits.view(count, self._ipc, -1))
        cdc = torch.zeros_like(dm)
        if self._targets is not None:
            local = logits.view(count, self._ipc, -1).mean(1, keepdim=True)
            cdc = sliced_wasserstein(local, self._targets[part].unsqueeze(1))
        return _Terms(images, dm, cdc, (dm + self._lambda * cdc).sum())

    def measure(self, terms: _Terms, part: slice, clients: int) -> Tensor:
        """Of one slice: mean DM and CDC loss by client, and the ratio of their gradients' norms."""
        owners = self._owners[part]
        result = terms.dm.new_zeros(3, clients)
        shares = 1 / torch.bincount(self._owners, minlength=clients).clamp(min=1)
        result[0].index_add_(0, owners, terms.dm.detach())
        result[1].index_add_(0, owners, terms.cdc.detach())
        if self._targets is not None:
            dm = torch.autograd.grad(terms.dm.sum(), terms.images, retain_graph=True)[0].flatten(1).norm(dim=1)
            cdc = torch.autograd.grad(terms.cdc.sum(), terms.images)[0].flatten(1).norm(dim=1)
            result[2].index_add_(0, owners, self._lambda * cdc / dm.clamp(min=1e-30))
        return result * shares


class _Slices:
    """The pairs that go through the network together: as many as fit, or one client's where BatchNorm takes batch
    statistics, which must not mix clients."""

    def __init__(
        self, jobs: Sequence[Job], engine: Engine, options: CondensationOptions, activation_bytes: int
    ) -> None:
        self._jobs, self._engine, self._by_client = jobs, engine, options.bn_mode == "batch"
        self._pair_bytes = activation_bytes * (options.real_batch + options.ipc)

    def __iter__(self) -> Iterator[slice]:
        sizes = [len(job.classes) for job in self._jobs]
        if not self._by_client:
            yield from self._engine.chunks(sum(sizes), self._pair_bytes)
            return
        start = 0
        for size in sizes:
            if size:
                yield slice(start, start + size)
            start += size


def _clip_factors(gradient: Tensor, owners: Tensor, clients: int, limit: float) -> Tensor:
    """For each pair, the factor that brings its client's gradient norm down to ``limit``."""
    squares = gradient.flatten(1).square().sum(1)
    norms = torch.zeros(clients, device=gradient.device).index_add_(0, owners, squares).sqrt()
    factors = (limit / norms.clamp(min=limit))[owners]
    return factors.view(-1, *([1] * (gradient.ndim - 1)))
