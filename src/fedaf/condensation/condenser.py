"""The condensation loop, for any number of clients at once.

With one network for all clients of a step and running statistics in its BatchNorm, the loss is a sum over
(client, class) pairs that do not touch each other. So the pairs of several clients are laid side by side and go
through the network together; the result for each is that of condensing it alone.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaf.condensation.matching import distribution_matching, sliced_wasserstein
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Networks
from fedaf.data.pixels import take
from fedaf.models.backbone import Backbone
from fedaf.protocol import Engine, Key, Shard, Task, Tensors

_MOST_PAIRS = 64  # at a time; a GPU is busy with fewer


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


@dataclass(frozen=True)
class Objective:
    """L_loc = L_DM + lambda_loc * SWD, under the networks of a round. With ``match_logits`` L_DM counts the mean
    logits too, beside the mean features."""

    backbone: Backbone
    networks: Networks
    lambda_loc: float = 0.0
    match_logits: bool = False


def condense(
    jobs: Sequence[Job], objective: Objective, *, options: CondensationOptions, task: Task, engine: Engine
) -> Iterator[Condensed]:
    """Minimise the objective over the images of all jobs with ``options.local_steps`` steps of SGD. Jobs are worked on
    in groups that fit the memory; their results come in order, as groups are done."""
    groups = _groups(jobs, objective.backbone, options, engine)
    rooms = [Room.of(group) for group in groups]
    if options.bn_mode == "eval":  # pairs do not touch each other, so all groups get the same room, and one recording
        rooms = [Room.for_all(rooms)] * len(groups)
    steps = options.local_steps
    with ExitStack() as open_work:
        work: Condensation | None = None
        for number, (group, room) in enumerate(zip(groups, rooms, strict=True)):
            if not steps or not any(job.classes for job in group):
                yield from (Condensed(job.images, 0.0, 0.0, 0.0) for job in group)
                continue
            if work is None or work.room != room:
                open_work.close()
                made = Condensation(room, objective, options=options, task=task, engine=engine)
                work = open_work.enter_context(closing(made))
            work.load(group)
            for step in range(steps):
                work.draw(step)
                if step == steps - 1:
                    work.measure()
                work.move()
                engine.tick(number * steps + step + 1, len(groups) * steps)
            yield from work.results()


def _groups(jobs: Sequence[Job], backbone: Backbone, options: CondensationOptions, engine: Engine) -> list[list[Job]]:
    """Whole clients, in order: one each where BatchNorm takes batch statistics, which must not mix clients. Otherwise
    as few groups as fit the memory, and as even as can be, since all get the room of the largest; what a group has
    above its share is less than one client's, and the memory is kept by slices."""
    if options.bn_mode == "batch":
        return [[job] for job in jobs]
    pairs = sum(len(job.classes) for job in jobs)
    fit = next((part.stop for part in engine.chunks(_MOST_PAIRS, options.ipc * backbone.activation_bytes)), 1)
    count = max(1, math.ceil(pairs / fit))
    room = math.ceil(pairs / count)
    while len(groups := _packed(jobs, room)) > count:
        room += 1
    return groups


def _packed(jobs: Sequence[Job], room: int) -> list[list[Job]]:
    """One after the other into groups of at most so many pairs; a client with more has one of its own."""
    groups: list[list[Job]] = []
    free = 0
    for job in jobs:
        if not groups or len(job.classes) > free:
            groups.append([])
            free = room
        groups[-1].append(job)
        free -= len(job.classes)
    return groups


@dataclass(frozen=True)
class Room:
    """Place for a group of clients: so many clients, pairs and real images."""

    clients: int
    pairs: int
    images: int
    guided: bool

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> "Room":
        images = sum(job.shard.counts[label] for job in jobs for label in job.classes)
        guided = all(job.targets is not None for job in jobs)
        return cls(len(jobs), sum(len(job.classes) for job in jobs), images, guided)

    @classmethod
    def for_all(cls, rooms: Iterable["Room"]) -> "Room":
        rooms = list(rooms)
        return cls(
            max(room.clients for room in rooms),
            max(room.pairs for room in rooms),
            max(room.images for room in rooms),
            all(room.guided for room in rooms),
        )


class Condensation:
    """A group of clients at work. Everything lies in tensors that stay where they are, so that ``move`` can be recorded
    once and replayed: for every step, and for every group that has the same room. Pairs that a group leaves empty
    compute nothing of use, and nobody reads it."""

    def __init__(
        self, room: Room, objective: Objective, *, options: CondensationOptions, task: Task, engine: Engine
    ) -> None:
        self._batch_statistics = options.bn_mode == "batch"
        if self._batch_statistics:  # BatchNorm divides by the spread of a few images, and so by its rounding
            engine = engine.in_fp32()
        self.room, self._objective, self._options, self._task, self._engine = room, objective, options, task, engine
        device, pairs = engine.device, room.pairs
        self._pool = torch.zeros(room.images, *task.image_shape, dtype=torch.uint8, device=device)
        self._starts = torch.zeros(pairs, 1, dtype=torch.int64, device=device)
        self._counts = torch.ones(pairs, 1, dtype=torch.int64, device=device)
        self._owners = torch.zeros(pairs, dtype=torch.int64, device=device)
        self._uniform = torch.zeros(pairs, options.real_batch, device=device)
        self._targets = torch.zeros(pairs, 1, task.num_classes, device=device) if room.guided else None
        self._images = torch.zeros(pairs, options.ipc, *task.image_shape, device=device)
        self._velocity = torch.zeros_like(self._images)
        self._jobs: Sequence[Job] = ()
        self._generators: list[torch.Generator] = []
        self._measured = torch.zeros(3, pairs)
        self._parts = self._slices(pairs, options.ipc)
        self._real_parts = self._slices(pairs * options.real_batch, 1)
        self.move: Callable[[], None] = engine.capture(self._move)

    def load(self, jobs: Sequence[Job]) -> None:
        """Take in a group of clients."""
        self._jobs, self._generators = jobs, [job.key.derive("draws").torch(self._engine.device) for job in jobs]
        self._starts.zero_()
        self._counts.fill_(1)
        self._owners.fill_(self.room.clients)  # nobody's, unless a pair is taken
        self._velocity.zero_()
        pair = row = 0
        for number, job in enumerate(jobs):
            taken = slice(pair, pair + len(job.classes))
            self._images[taken] = job.images.to(self._images)
            self._owners[taken] = number
            if self._targets is not None and job.targets is not None:
                self._targets[taken, 0] = job.targets.to(self._targets)
            for label in job.classes:
                mine = job.shard.images[job.shard.rows_of(label)]
                self._pool[row : row + len(mine)] = mine
                self._starts[pair], self._counts[pair] = row, len(mine)
                pair, row = pair + 1, row + len(mine)

    def draw(self, step: int) -> None:
        """Choose the network of a step, and its real images: each client's from its own key, with replacement."""
        self._objective.networks.draw(step)
        pair = 0
        for job, generator in zip(self._jobs, self._generators, strict=True):
            self._uniform[pair : pair + len(job.classes)].uniform_(generator=generator)
            pair += len(job.classes)

    def close(self) -> None:
        """Let go of what was recorded, and so of the device's memory: the recorded step and this hold each other."""
        del self.move

    def measure(self) -> None:
        """Keep what the losses of all pairs and their gradients are, before a step is made."""
        measured = []
        for terms in self._terms():
            cdc = ratio = torch.zeros_like(terms.dm)
            if terms.cdc is not None:
                cdc = terms.cdc
                guided = terms.gradient(0, self._objective.lambda_loc, keep=True).flatten(1).norm(dim=1)
                ratio = guided / terms.gradient(1, 0).flatten(1).norm(dim=1).clamp(min=1e-30)
            measured.append(torch.stack([terms.dm.detach(), cdc.detach(), ratio]))
        self._measured = torch.cat(measured, 1)

    def results(self) -> Iterator[Condensed]:
        """What the clients of the group get, in order."""
        measured, images, pair = self._measured.cpu(), self._images.cpu(), 0
        for job in self._jobs:
            mine = slice(pair, pair + len(job.classes))
            dm, cdc, ratio = (measured[:, mine].sum(1) / max(1, len(job.classes))).tolist()
            yield Condensed(images[mine].clone(), dm, cdc, ratio)
            pair = mine.stop

    def _move(self) -> None:
        options = self._options
        gradient = _joined([terms.gradient(1, self._objective.lambda_loc) for terms in self._terms()])
        if options.image_clip is not None:
            gradient *= _clip_factors(gradient, self._owners, self.room.clients + 1, options.image_clip)
        torch.add(gradient, self._velocity, alpha=options.image_momentum, out=self._velocity)
        self._images.sub_(self._velocity, alpha=options.image_lr)

    def _terms(self) -> Iterator["_Terms"]:
        """The losses of the pairs, in slices that fit the memory, each with a graph back to its images."""
        objective, ipc, batch = self._objective, self._options.ipc, self._options.real_batch
        with self._engine.autocast():
            weights = objective.networks.weights()
        real_features, real_logits = self._real(weights)
        for part in self._parts:
            images = self._images[part].detach().requires_grad_()
            features, logits = (each.unflatten(0, (-1, ipc)) for each in self._outputs(weights, images.flatten(0, 1)))
            dm = distribution_matching(real_features.unflatten(0, (-1, batch))[part], features)
            if real_logits is not None:
                dm = dm + distribution_matching(real_logits.unflatten(0, (-1, batch))[part], logits)
            cdc = None
            if self._targets is not None:
                local = logits.mean(1, keepdim=True, dtype=torch.float32)
                cdc = sliced_wasserstein(local, self._targets[part])
            yield _Terms(images, dm, cdc)

    @torch.no_grad()
    def _real(self, weights: Tensors) -> tuple[Tensor, Tensor | None]:
        """Features of the real images of the step, all pairs one after the other, and logits where they matter."""
        picks = (self._uniform * self._counts).long().minimum(self._counts - 1)
        rows = (self._starts + picks).flatten()
        batches = (take(self._pool, rows[part], self._task.mean, self._task.std) for part in self._real_parts)
        if self._objective.match_logits:
            features, logits = zip(*(self._outputs(weights, batch) for batch in batches), strict=True)
            return _joined(features), _joined(logits)
        with self._engine.autocast():
            backbone, mode = self._objective.backbone, self._batch_statistics
            return _joined([backbone.features(weights, batch, batch_statistics=mode) for batch in batches]), None

    def _outputs(self, weights: Tensors, images: Tensor) -> tuple[Tensor, Tensor]:
        with self._engine.autocast():
            return self._objective.backbone(weights, images, batch_statistics=self._batch_statistics)

    def _slices(self, count: int, images: int) -> list[slice]:
        """Cut ``count`` items of so many images each to the memory; not where they share batch statistics."""
        if self._batch_statistics:
            return [slice(0, count)]
        return list(self._engine.chunks(count, images * self._objective.backbone.activation_bytes))


@dataclass(frozen=True)
class _Terms:
    """Of some pairs: their images, and each loss as a vector over pairs."""

    images: Tensor
    dm: Tensor
    cdc: Tensor | None

    def gradient(self, dm: float, cdc: float, *, keep: bool = False) -> Tensor:
        """Of the losses with these weights, summed over pairs; with ``keep`` it can be asked for again."""
        weighted = [(self.dm, dm)] if self.cdc is None else [(self.dm, dm), (self.cdc, cdc)]
        losses, weights = zip(*((loss, torch.full_like(loss, weight)) for loss, weight in weighted), strict=True)
        return torch.autograd.grad(losses, self.images, weights, retain_graph=keep)[0]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _clip_factors(gradient: Tensor, owners: Tensor, clients: int, limit: float) -> Tensor:
    """For each pair, the factor that brings its client's gradient norm down to ``limit``."""
    squares = gradient.flatten(1).square().sum(1)
    norms = torch.zeros(clients, device=gradient.device).index_add_(0, owners, squares).sqrt()
    factors = (limit / norms.clamp(min=limit))[owners]
    return factors.view(-1, *([1] * (gradient.ndim - 1)))
