"""The one training routine: local epochs of clients and training on the server, with any loss."""

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NotRequired, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.sgd import sgd
from torch.optim.swa_utils import get_ema_multi_avg_fn

from fedaf.common.batches import batch_sizes
from fedaf.data.augmentation import augment, augmentation_parameters, draws_of
from fedaf.data.pixels import take
from fedaf.protocol import Draws, Engine, Key, Task
from fedaf.training.cutmix import DRAWS, cutmix
from fedaf.training.order import epoch_order

_DRAWN = {"cuda": 1 << 16}  # images whose order and augmentation are drawn at once; elsewhere those of one epoch


@dataclass(frozen=True)
class Weighted:
    """A term of a loss and its weight in the sum. Logs show the term without its weight."""

    term: Tensor
    weight: float


#: From a batch of normalised images and its labels to the terms of the loss, by name. Training minimises their weighted
#: sum. Labels are class ids [N] or, with CutMix, class probabilities [N, classes]. A loss draws random numbers from
#: PyTorch's default generator of the device only.
Loss = Callable[[Tensor, Tensor], Mapping[str, Tensor | Weighted]]


def weighted_sum(terms: Mapping[str, Tensor | Weighted]) -> Tensor:
    """Return the sum of all terms, each with its weight; a plain tensor has weight 1."""
    return torch.stack([t.weight * t.term if isinstance(t, Weighted) else t for t in terms.values()]).sum()


def cross_entropy(model: nn.Module) -> Loss:
    """Return the loss with the single term ``ce``."""
    return lambda images, labels: {"ce": F.cross_entropy(model(images), labels)}


class TrainingOptions(TypedDict):
    """How to train.

    Args:
        task: Normalisation constants and augmentation.
        batch_size: Images of a step.
        lr: Learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD: it adds ``weight_decay`` times the weights to their gradient; 0 if unset.
        key: The source of randomness.
        engine: Where and how to compute.
        loss: The loss; ``None`` is cross-entropy.
        clip: Maximum gradient norm; ``None`` does not clip.
        ema: Decay of an exponential moving average of the weights, which replaces them at the end; ``None``: the last
            weights stay.
        cutmix: The share of images that CutMix changes.
        weights: How often each image is drawn, relative to the others: float64 [N]; ``None``: once per epoch.
    """

    task: Task
    batch_size: int
    lr: float
    momentum: float
    weight_decay: NotRequired[float]
    key: Key
    engine: Engine
    loss: NotRequired[Loss | None]
    clip: NotRequired[float | None]
    ema: NotRequired[float | None]
    cutmix: NotRequired[float]
    weights: NotRequired[Tensor | None]


def fit(
    model: nn.Module, images: Tensor, labels: Tensor, *, epochs: int, **options: Unpack[TrainingOptions]
) -> dict[str, float]:
    """Train ``model`` in place by SGD, from zero momentum.

    All randomness follows from ``key``, including dropout. A last batch of a single image is dropped, because BatchNorm
    has no variance for it.

    Args:
        model: The network to train.
        images: uint8 images [N, C, H, W].
        labels: int64 labels [N].
        epochs: Passes over the images.
        **options: See ``TrainingOptions``.

    Returns:
        The mean of each loss term over the last epoch, without weights.
    """
    training, engine = Training(model, images, labels, **options), options["engine"]
    seeded = nullcontext() if engine.device.type == "cpu" else options["key"].derive("forward").seeded(engine.device)
    with closing(training), seeded:  # for dropout and the like; on a CPU, each step draws from the same key itself
        for epoch in range(epochs):
            training.epoch()
            engine.tick(epoch + 1, epochs)
        training.finish()
        return training.losses()


class Training:
    """A model in training, epoch by epoch.

    Images, and the order and augmentation of some epochs, are kept in fixed tensors on the device, so that an engine
    can capture one step per batch size and replay it.
    """

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor, **options: Unpack[TrainingOptions]) -> None:
        engine, task, key, batch_size = options["engine"], options["task"], options["key"], options["batch_size"]
        device, count = engine.device, len(labels)
        model.to(device).train()
        self._engine, self._task, self._clip = engine, task, options.get("clip")
        self._cutmix, self._weights, ema = options.get("cutmix", 0.0), options.get("weights"), options.get("ema")
        self._loss = options.get("loss") or cross_entropy(model)
        self._images, self._labels = images.to(device).contiguous(), labels.to(device)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._lr, self._momentum, self._decay = options["lr"], options["momentum"], options.get("weight_decay", 0.0)
        self._velocities = [torch.zeros_like(p) for p in self._parameters]
        self._averages = [] if ema is None else [p.detach().clone() for p in self._parameters]
        self._update_averages = None if ema is None else get_ema_multi_avg_fn(ema)
        self._order_draws, self._augment_draws = key.derive("order").torch(), key.derive("augment").torch(device)
        self._mix_draws = key.derive("cutmix").torch(device)
        self._forward_draws = Draws(key.derive("forward")) if device.type == "cpu" else None
        sizes = batch_sizes(count, batch_size)
        self._count, self._kept = count, sum(sizes)
        self._epochs, self._epochs_left = max(1, _DRAWN.get(device.type, 0) // max(1, count)), 0
        drawn = self._epochs * self._kept
        self._order = torch.zeros(drawn, dtype=torch.int64, device=device)
        self._draws = torch.zeros(drawn, draws_of(task.augment), device=device)
        self._variations = augmentation_parameters(task.augment, self._draws)
        self._mixes = torch.zeros(drawn if self._cutmix else 0, DRAWS, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._window = torch.arange(min(batch_size, count), device=device)
        self._totals: dict[str, Tensor] = {}
        steps = {size: engine.capture(partial(self._step, size)) for size in set(sizes)}
        self._steps = [steps[size] for size in sizes]

    def epoch(self) -> None:
        """Train on every image once, or as often as its weight says, in a new order."""
        if not self._steps:  # without a batch there is no order to draw
            return
        if not self._epochs_left:
            self._draw_epochs()
        self._epochs_left -= 1
        for total in self._totals.values():
            total.zero_()
        with self._engine.concurrently():
            for step in self._steps:
                step()

    def close(self) -> None:
        """Release captured graphs and their memory; steps and training refer to each other."""
        self._steps.clear()

    def _draw_epochs(self) -> None:
        """Draw the order, the augmentation and the mixing of the next epochs."""
        orders = [epoch_order(self._count, self._order_draws, self._weights) for _ in range(self._epochs)]
        self._order.copy_(torch.cat([order[: self._kept] for order in orders]))
        draws = self._draws.uniform_(generator=self._augment_draws)
        self._variations.copy_(augmentation_parameters(self._task.augment, draws))
        self._mixes.uniform_(generator=self._mix_draws)
        self._position.zero_()
        self._epochs_left = self._epochs

    @torch.no_grad()
    def finish(self) -> None:
        """Replace the weights by their average, if there is one."""
        for parameter, average in zip(self._parameters, self._averages, strict=False):
            parameter.copy_(average)

    def losses(self) -> dict[str, float]:
        """Return the mean of each loss term over the batches of the last epoch."""
        return {name: float(total) / len(self._steps) for name, total in self._totals.items()}

    def _step(self, size: int) -> None:
        task, positions = self._task, self._position + self._window[:size]
        rows = self._order[positions]
        batch = take(self._images, rows, task.mean, task.std)
        batch = augment(batch, task.augment, self._variations[positions])
        labels = self._labels[rows]
        if self._cutmix:
            targets = F.one_hot(labels, task.num_classes).float()
            batch, labels = cutmix(batch, targets, self._mixes[positions], self._cutmix)
        draws = nullcontext() if self._forward_draws is None else self._forward_draws.block(size)
        with self._engine.autocast(), draws:
            terms = self._loss(batch, labels)
        gradients = torch.autograd.grad(weighted_sum(terms), self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient if gradient is None else _laid_out_like(parameter, gradient)
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._descend()
        if self._update_averages is not None:
            self._update_averages(self._averages, self._parameters, None)
        for name, given in terms.items():
            term = given.term if isinstance(given, Weighted) else given
            self._totals.setdefault(name, torch.zeros_like(term.detach())).add_(term.detach())
        self._position.add_(size)

    @torch.no_grad()
    def _descend(self) -> None:
        """Take a step of SGD with momentum.

        ``torch.optim.SGD`` calls the same function, but its constructor imports PyTorch's compiler, which takes longer
        than everything else before the first step.
        """
        used = [(p, p.grad, v) for p, v in zip(self._parameters, self._velocities, strict=True) if p.grad is not None]
        sgd(
            [parameter for parameter, _, _ in used],
            [gradient for _, gradient, _ in used],
            [velocity for _, _, velocity in used],
            foreach=False,
            fused=self._engine.device.type == "cuda",
            lr=self._lr,
            momentum=self._momentum,
            weight_decay=self._decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


def _laid_out_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Fused SGD needs gradients with the strides of their parameters, which sums of gradients may not have."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
