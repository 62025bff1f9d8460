"""Evaluation of a model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedaf.data.dataset import Split
from fedaf.data.pixels import normalise
from fedaf.models.footprint import pass_bytes
from fedaf.protocol import Engine, Task
from fedaf.training.scores import Scores, score_logits

_BATCH = 1000  # images; the upper limit, even if more would fit the memory budget


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, task: Task, engine: Engine) -> Tensor:
    """Return the logits [N, classes] of uint8 images, in eval mode; they stay on the device."""
    model.to(engine.device).eval()
    bytes_each = pass_bytes(model, torch.zeros(1, *task.image_shape, device=engine.device))
    fit = next(engine.chunks(len(images), bytes_each), slice(0)).stop
    parts: list[Tensor] = []
    for part in images.split(max(1, min(_BATCH, fit))):
        part = part.contiguous()  # a memory-mapped file is channels-last, which may change a model's rounding
        with engine.autocast(), engine.concurrently():  # in eval mode, a model draws nothing
            parts.append(model(normalise(part.to(engine.device), task.mean, task.std)).float())
        engine.tick(min(len(parts) * len(parts[0]), len(images)), len(images))
    return torch.cat(parts)


def score(model: nn.Module, test: Split, domains: Sequence[str], task: Task, engine: Engine) -> Scores:
    """Return all figures of merit on a test set, from one pass over it."""
    return score_logits(predict(model, test.images, task, engine), test.labels, test.domains, domains)
