"""Testing a model."""

import torch
from torch import Tensor, nn

from fedaf.data.pixels import normalise
from fedaf.protocol import Engine, Task

_BATCH = 1000


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, task: Task, engine: Engine) -> Tensor:
    """Logits [N, classes] of uint8 images, with the model in eval mode; the result stays on the device."""
    model.to(engine.device).eval()
    parts = []
    for part in images.split(_BATCH):
        parts.append(model(normalise(part.to(engine.device), task.mean, task.std)))
        engine.tick(len(parts) * _BATCH, len(images))
    return torch.cat(parts)


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, task: Task, engine: Engine) -> float:
    """Per cent of images classified right."""
    right = (predict(model, images, task, engine).argmax(1) == labels.to(engine.device)).sum()
    return 100 * int(right) / len(labels)
