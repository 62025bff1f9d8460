"""Averaging methods on quadratics: one weight w and, for client k, the loss (x_k w - y_k)^2 / 2.

The curvature is x_k^2 and the optimum y_k / x_k. All samples of a client are alike, so every batch has the gradient of
the whole.
"""

from typing import Any

import torch
from torch import Tensor, nn

from fedaf.methods.averaging import AveragingMethod
from fedaf.methods.registry import METHODS
from fedaf.models.weights import initialise
from fedaf.protocol import Architecture, Key, Shard, Task
from support.tiny import Play

LINE = Task("line", 1, 1, 1, 2, mean=(0.0,), std=(1.0,))


def line(key: Key) -> nn.Module:
    return initialise(nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False)), key)


def on_quadratics(name: str, **options: Any) -> AveragingMethod:
    """A method with the squared error of the first output in place of cross-entropy; its other terms stay."""
    plain = METHODS.find(name)

    class Fit(plain.Fit):
        def loss(self, model, ask, client, engine):
            whole = super().loss(model, ask, client, engine)

            def loss(images: Tensor, labels: Tensor):
                error = (model(images)[:, 0] - labels).square().mean() / 2
                return {**(whole(images, labels) if whole else {}), "ce": error}

            return loss

    method = type(name, (plain,), {"Fit": Fit})(plain.Options(**options), LINE, Architecture(line))
    assert isinstance(method, AveragingMethod)
    return method


def on_the_line(pixel: int, label: int, count: int) -> Shard:
    return Shard(torch.full((count, 1, 1, 1), pixel, dtype=torch.uint8), torch.full((count,), label), 2)


STEEP, FLAT = on_the_line(255, 1, 128), on_the_line(102, 0, 128)  # curvature 1 with optimum 1; 0.16 with optimum 0
MANY_FLAT = on_the_line(102, 0, 384)


def reached(running: Play, rounds: int) -> float:
    """The weight after some more rounds."""
    for _ in range(rounds):
        running.round()
    return float(running.server.model["1.weight"][0, 0])


def joint_optimum(*shards: Shard) -> float:
    """The optimum of the loss over all samples."""
    x = torch.cat([held.images.flatten() / 255.0 for held in shards])
    y = torch.cat([held.labels for held in shards])
    return float((x * y).sum() / x.square().sum())
