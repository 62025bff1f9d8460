"""The condensation loop, for any number of clients at once.

All clients share one network per step, and BatchNorm uses running statistics by default. The loss is then a sum over
independent (client, class) pairs. So the pairs of several clients go through the network in one batch, and each client
gets the same result as alone.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaf.condensation.jobs import Capacity, Job, group_jobs
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Networks
from fedaf.condensation.source import Forward, RealBatches, SourceFactory, concatenate
from fedaf.condensation.terms import Pairs, Term, features_distance
from fedaf.data.pixels import pixel_range
from fedaf.models.backbone import Backbone
from fedaf.protocol import Engine, Key, Task

_DIRECTIONS = 256  # at every step, for terms that need them
_ANY_KEY = Key(0)  # if no term needs directions


@dataclass(frozen=True)
class Condensed:
    """A client's condensed images, and measurements of the last step averaged over the client's classes.

    Args:
        images: Normalised images, [classes, ipc, C, H, W].
        losses: Each term, unweighted.
        gradient_ratios: For each term after the first: the norm of its weighted gradient, divided by the norm of the
            first term's weighted gradient.
    """

    images: Tensor
    losses: Mapping[str, float]
    gradient_ratios: Mapping[str, float]


@dataclass(frozen=True)
class Objective:
    """The weighted sum of ``terms`` under the networks of a round; L_loc of Eq. 10 for FedAF.

    Args:
        backbone: Calls the networks.
        networks: One network per step.
        terms: The terms and their weights.
        key: Source of the random directions, which all clients share as they share the networks.
        source: Makes the source of what is matched.
    """

    backbone: Backbone
    networks: Networks
    terms: tuple[Term, ...] = (Term("dm", features_distance),)
    key: Key = _ANY_KEY
    source: SourceFactory = RealBatches


def condense(
    jobs: Sequence[Job], objective: Objective, *, options: CondensationOptions, task: Task, engine: Engine
) -> Iterator[Condensed]:
    """Minimise the objective over the images of all jobs, with ``options.local_steps`` steps of SGD.

    Args:
        jobs: The clients to condense.
        objective: The loss terms and the networks.
        options: Step sizes, batch sizes and so on.
        task: The shape and normalisation of images.
        engine: Where to compute.

    Yields:
        One result per job, in order. Jobs run in groups that fit the memory budget.
    """
    groups = group_jobs(jobs, objective.backbone, options, engine)
    steps, largest = options.local_steps, Capacity.of(*groups)
    with ExitStack() as open_work:
        work: Condensation | None = None
        for number, group in enumerate(groups):
            # without batch statistics, pairs are independent: all groups share one set of buffers and one capture
            capacity = largest if options.bn_mode == "eval" else Capacity.of(group)
            if not steps or not any(job.classes for job in group):
                losses = {term.name: 0.0 for term in objective.terms}
                ratios = {term.name: 0.0 for term in objective.terms[1:]}
                yield from (Condensed(job.images, losses, ratios) for job in group)
                continue
            if work is None or work.capacity != capacity:
                open_work.close()
                made = Condensation(capacity, objective, options=options, task=task, engine=engine)
                work = open_work.enter_context(closing(made))
            work.load(group)
            for step in range(steps):
                work.draw(step)
                (work.move if step < steps - 1 else work.last_move)()
                engine.tick(number * steps + step + 1, len(groups) * steps)
            yield from work.results()


class Condensation:
    """The condensation of one group of clients after another.

    Every buffer keeps its address, so an engine can capture ``move`` once and replay it for all steps and groups of the
    same capacity. Pairs that a small group leaves unused compute values that nobody reads. ``last_move`` is a move that
    also measures the losses and the ratios of their gradients, before the images move.
    """

    def __init__(
        self, capacity: Capacity, objective: Objective, *, options: CondensationOptions, task: Task, engine: Engine
    ) -> None:
        batch_statistics = options.bn_mode == "batch"
        if batch_statistics:  # the variance of a few images amplifies rounding errors
            engine = engine.in_fp32()
        self.capacity, self._options, self._engine = capacity, options, engine
        self._networks, self._all_terms = objective.networks, objective.terms
        self._terms = [(term, term.weight) for term in objective.terms if term.weight is not None]
        self._forward = Forward(objective.backbone, engine, batch_statistics=batch_statistics)
        device, pairs = engine.device, capacity.pairs
        self._source = objective.source(capacity, options.real_batch, task, self._forward, device)
        self._owners = torch.zeros(pairs, dtype=torch.int64, device=device)
        self._targets = torch.zeros(pairs, 1, task.num_classes, device=device) if capacity.targets else None
        self._images = torch.zeros(pairs, options.ipc, *task.image_shape, device=device)
        self._velocity = torch.zeros_like(self._images)
        self._lr = torch.full((), options.image_lr, device=device)
        self._rates = torch.ones(pairs, 1, 1, 1, 1, device=device) if capacity.rates else None
        self._range = pixel_range(task.mean, task.std, device) if options.clamp_images else None
        wants_directions = any(term.directions for term, _ in self._terms)
        size = (objective.backbone.num_features, _DIRECTIONS)
        self._directions = torch.zeros(size, device=device) if wants_directions else None
        self._key = objective.key.derive("directions")
        self._jobs: Sequence[Job] = ()
        self._losses, self._ratios = torch.zeros(2, len(self._terms), pairs, device=device)
        self._slices = self._forward.slices(pairs, options.ipc)
        self.move: Callable[[], None] = engine.capture(self._move)
        self.last_move: Callable[[], None] = engine.capture(self._last_move)

    def load(self, jobs: Sequence[Job]) -> None:
        """Copy a group of clients into the buffers."""
        self._jobs = jobs
        self._source.load(jobs)
        self._owners.fill_(self.capacity.clients)  # marks unused pairs
        self._velocity.zero_()
        for number, (job, pairs) in enumerate(self._pairs_by_job()):
            self._images[pairs] = job.images.to(self._images)
            self._owners[pairs] = number
            if self._rates is not None:
                self._rates[pairs] = 1.0 if job.rates is None else job.rates.to(self._rates).view(-1, 1, 1, 1, 1)
            if self._targets is not None and job.targets is not None:
                self._targets[pairs, 0] = job.targets.to(self._targets)

    def draw(self, step: int) -> None:
        """Draw the network, the real images and the directions of a step, and set its learning rate."""
        self._networks.draw(step)
        self._source.draw(step)
        if self._directions is not None:
            self._directions.normal_(generator=self._key.derive(step).torch(self._directions.device))
        if self._options.image_lr_decay:
            progress = step / self._options.local_steps
            self._lr.fill_(self._options.image_lr * (1 + math.cos(math.pi * progress)) / 2)

    def close(self) -> None:
        """Release the captured steps and their device memory: the steps and this object refer to each other."""
        del self.move, self.last_move

    def results(self) -> Iterator[Condensed]:
        """Yield the results of the group's clients, in order."""
        images, losses, ratios = self._images.cpu(), self._losses.cpu(), self._ratios.cpu()
        for _, pairs in self._pairs_by_job():
            mean_losses, mean_ratios = (self._means(values[:, pairs]) for values in (losses, ratios))
            del mean_ratios[self._all_terms[0].name]
            yield Condensed(images[pairs].clone(), mean_losses, mean_ratios)

    def _means(self, values: Tensor) -> dict[str, float]:
        """Name the means of the active terms over some pairs; terms that are switched off are 0."""
        means = (values.sum(1) / max(1, values.shape[1])).tolist()
        active = {term.name: mean for (term, _), mean in zip(self._terms, means, strict=True)}
        return {term.name: active.get(term.name, 0.0) for term in self._all_terms}

    def _pairs_by_job(self) -> Iterator[tuple[Job, slice]]:
        pair = 0
        for job in self._jobs:
            yield job, slice(pair, pair + len(job.classes))
            pair += len(job.classes)

    def _one_at_a_time(self) -> Iterator[list[float]]:
        """Yield the weights that keep one term only, for each term."""
        for kept in range(len(self._terms)):
            yield [weight if number == kept else 0.0 for number, (_, weight) in enumerate(self._terms)]

    def _move(self) -> None:
        weights = [weight for _, weight in self._terms]
        self._descend(concatenate([part.gradient(weights, keep_graph=False) for part in self._evaluate()]))

    def _last_move(self) -> None:
        losses, ratios, gradients = [], [], []
        for part in self._evaluate():
            by_term = torch.stack([part.gradient(weights) for weights in self._one_at_a_time()])
            norms = by_term.flatten(2).norm(dim=2)
            losses.append(torch.stack([loss.detach() for loss in part.losses]))
            ratios.append(norms / norms[0].clamp(min=1e-30))
            gradients.append(by_term.sum(0))
        self._losses.copy_(concatenate(losses, dim=1))
        self._ratios.copy_(concatenate(ratios, dim=1))
        self._descend(concatenate(gradients))

    def _descend(self, gradient: Tensor) -> None:
        """Take one step of SGD with momentum on all images."""
        options = self._options
        if options.image_clip is not None:
            gradient *= _clip_factors(gradient, self._owners, self.capacity.clients + 1, options.image_clip)
        if self._rates is not None:
            gradient *= self._rates
        torch.add(gradient, self._velocity, alpha=options.image_momentum, out=self._velocity)
        self._images.addcmul_(self._velocity, self._lr, value=-1)
        if self._range is not None:
            torch.clamp(self._images, *self._range, out=self._images)

    def _evaluate(self) -> Iterator["_Evaluated"]:
        """Evaluate all terms, in slices of pairs that fit the memory budget."""
        with self._engine.autocast():
            weights = self._networks.weights()
        wants_logits = any(term.real_logits for term, _ in self._terms)
        real_features, real_logits = self._source.outputs(weights, logits=wants_logits)
        for part in self._slices:
            images = self._images[part].detach().requires_grad_()
            outputs = self._forward(weights, images.flatten(0, 1))
            features, logits = (each.unflatten(0, (-1, self._options.ipc)) for each in outputs)
            of_real = None if real_logits is None else real_logits[part]
            targets = None if self._targets is None else self._targets[part]
            pairs = Pairs(real_features[part], of_real, features, logits, targets, self._directions)
            yield _Evaluated(images, [term.value(pairs) for term, _ in self._terms])


@dataclass(frozen=True)
class _Evaluated:
    """Some pairs' images and the unweighted terms of their loss, each a vector over pairs."""

    images: Tensor
    losses: list[Tensor]

    def gradient(self, weights: Sequence[float], *, keep_graph: bool = True) -> Tensor:
        """Return the gradient of the weighted sum with respect to the images."""
        factors = [torch.full_like(loss, weight) for loss, weight in zip(self.losses, weights, strict=True)]
        return torch.autograd.grad(self.losses, self.images, factors, retain_graph=keep_graph)[0]


def _clip_factors(gradient: Tensor, owners: Tensor, clients: int, limit: float) -> Tensor:
    """Return for each pair the factor that scales its client's gradient norm down to ``limit``."""
    squares = gradient.flatten(1).square().sum(1)
    norms = torch.zeros(clients, device=gradient.device).index_add_(0, owners, squares).sqrt()
    factors = (limit / norms.clamp(min=limit))[owners]
    return factors.view(-1, *([1] * (gradient.ndim - 1)))
