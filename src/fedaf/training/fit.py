"""One routine for every training in the package: a client's local epochs and the server's, with any loss."""

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.data.augmentation import augment, augmentation_parameters, draws_of
from fedaf.data.pixels import take
from fedaf.protocol import Engine, Key, Task

_DEALT = 1 << 16  # images whose order and variation are drawn at once

#: From a batch of normalised images and its labels to the terms of the loss, by name; their sum is minimised.
#: Whatever it draws at random it draws from PyTorch's own generator of the device.
Loss = Callable[[Tensor, Tensor], Mapping[str, Tensor]]


def cross_entropy(model: nn.Module) -> Loss:
    return lambda images, labels: {"ce": F.cross_entropy(model(images), labels)}


def fit(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    task: Task,
    epochs: int,
    batch_size: int,
    lr: float,
    momentum: float,
    key: Key,
    engine: Engine,
    loss: Loss | None = None,
    clip: float | None = None,
) -> dict[str, float]:
    """Train ``model`` in place by SGD on uint8 images; returns the mean of each loss term over the last epoch.

    Momentum starts at zero; with ``clip`` gradients are clipped to that norm. All that is random follows from ``key``,
    dropout too. A last batch of a single sample is dropped: BatchNorm has no variance for it.
    """
    training = Training(
        model,
        images,
        labels,
        task=task,
        batch_size=batch_size,
        lr=lr,
        momentum=momentum,
        key=key,
        engine=engine,
        loss=loss,
        clip=clip,
    )
    with closing(training), key.derive("forward").seeded(engine.device):  # what the network itself draws
        for epoch in range(epochs):
            training.epoch()
            engine.tick(epoch + 1, epochs)
        return training.losses()


class Training:
    """A model in training, epoch by epoch. Data, and the orders and variations of some epochs, lie on the device, in
    tensors that stay where they are, so that a step can be recorded once for each size of batch and replayed."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        *,
        task: Task,
        batch_size: int,
        lr: float,
        momentum: float,
        key: Key,
        engine: Engine,
        loss: Loss | None = None,
        clip: float | None = None,
    ) -> None:
        device, count = engine.device, len(labels)
        model.to(device).train()
        self._engine, self._task, self._clip, self._loss = engine, task, clip, loss or cross_entropy(model)
        self._images, self._labels = images.to(device).contiguous(), labels.to(device)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimiser = torch.optim.SGD(self._parameters, lr=lr, momentum=momentum, fused=device.type == "cuda")
        self._randomness = key.derive("order").torch(), key.derive("augment").torch(device)
        sizes = [batch_size] * (count // batch_size) + [count % batch_size] * (count % batch_size > 1)
        self._count, self._kept = count, sum(sizes)
        self._epochs, self._epochs_left = max(1, _DEALT // max(1, count)), 0
        dealt = self._epochs * self._kept
        self._order = torch.zeros(dealt, dtype=torch.int64, device=device)
        self._draws = torch.zeros(dealt, draws_of(task.augment), device=device)
        self._variations = augmentation_parameters(task.augment, self._draws)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._window = torch.arange(min(batch_size, count), device=device)
        self._totals: dict[str, Tensor] = {}
        steps = {size: engine.capture(partial(self._step, size)) for size in set(sizes)}
        self._steps = [steps[size] for size in sizes]

    def epoch(self) -> None:
        """Every image once, in a new order."""
        if not self._epochs_left:
            self._deal()
        self._epochs_left -= 1
        for total in self._totals.values():
            total.zero_()
        for step in self._steps:
            step()

    def close(self) -> None:
        """Let go of what was recorded, and so of the device's memory: steps and training hold each other."""
        self._steps.clear()

    def _deal(self) -> None:
        """Draw the orders and variations of the next epochs."""
        order, variation = self._randomness
        orders = [torch.randperm(self._count, generator=order)[: self._kept] for _ in range(self._epochs)]
        self._order.copy_(torch.cat(orders))
        self._variations.copy_(augmentation_parameters(self._task.augment, self._draws.uniform_(generator=variation)))
        self._position.zero_()
        self._epochs_left = self._epochs

    def losses(self) -> dict[str, float]:
        """The mean of each term over the batches of the last epoch."""
        return {name: float(total) / len(self._steps) for name, total in self._totals.items()}

    def _step(self, size: int) -> None:
        task, places = self._task, self._position + self._window[:size]
        rows = self._order[places]
        batch = take(self._images, rows, task.mean, task.std)
        batch = augment(batch, task.augment, self._variations[places])
        with self._engine.autocast():
            terms = self._loss(batch, self._labels[rows])
        gradients = torch.autograd.grad(torch.stack(list(terms.values())).sum(), self._parameters, allow_unused=True)
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient if gradient is None else _laid_out_like(parameter, gradient)
        if self._clip is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip)
        self._optimiser.step()
        for name, term in terms.items():
            self._totals.setdefault(name, torch.zeros_like(term.detach())).add_(term.detach())
        self._position.add_(size)


def _laid_out_like(parameter: Tensor, gradient: Tensor) -> Tensor:
    """SGD in one kernel wants both in one order; a sum of gradients may have the order of any of them."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
