"""One routine for every training in the package: a client's local epochs and the server's, with any loss."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.condensation.augmentation import augment
from fedaf.data.pixels import normalise
from fedaf.protocol import Engine, Key, Task

#: From a batch of normalised images and its labels to the terms of the loss, by name; their sum is minimised.
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
    device = engine.device
    model.to(device).train()
    images, labels = images.to(device), labels.to(device)
    loss = loss or cross_entropy(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    order, variation = key.fold("order").torch(), key.fold("augment").torch(device)
    totals: dict[str, Tensor] = {}
    steps = 0
    with key.fold("forward").seeded(device):  # what the network itself draws
        for epoch in range(epochs):
            totals, steps = {}, 0
            for rows in torch.randperm(len(labels), generator=order).to(device).split(batch_size):
                if len(rows) < 2:
                    continue
                batch = augment(normalise(images[rows], task.mean, task.std), task.augment, variation)
                terms = loss(batch, labels[rows])
                optimiser.zero_grad()
                torch.stack(list(terms.values())).sum().backward()
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimiser.step()
                for name, term in terms.items():
                    totals[name] = totals.get(name, 0) + term.detach()
                steps += 1
            engine.tick(epoch + 1, epochs)
    return {name: float(total) / steps for name, total in totals.items()}
