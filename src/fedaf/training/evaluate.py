"""Testing a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaf.data.dataset import Split
from fedaf.data.pixels import normalise
from fedaf.models.footprint import pass_bytes
from fedaf.protocol import Engine, Task

_BATCH = 1000  # at most, however much memory there is


@torch.no_grad()
def predict(model: nn.Module, images: Tensor, task: Task, engine: Engine) -> Tensor:
    """Logits [N, classes] of uint8 images, with the model in eval mode; the result stays on the device."""
    model.to(engine.device).eval()
    bytes_each = pass_bytes(model, torch.zeros(1, *task.image_shape, device=engine.device))
    fit = next(engine.chunks(len(images), bytes_each), slice(0)).stop
    parts: list[Tensor] = []
    for part in images.split(max(1, min(_BATCH, fit))):
        part = part.contiguous()  # a view of a file has channels last, and a model may compute otherwise for it
        with engine.autocast():
            parts.append(model(normalise(part.to(engine.device), task.mean, task.std)).float())
        engine.tick(min(len(parts) * len(parts[0]), len(images)), len(images))
    return torch.cat(parts)


@dataclass(frozen=True)
class Score:
    """Per cent of images classified right. With domains ``accuracy`` is the plain mean over them, so that a large one
    does not hide a small one."""

    accuracy: float
    by_domain: Mapping[str, float]


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, task: Task, engine: Engine) -> float:
    """Per cent of images classified right."""
    return _percent(_right(model, images, labels, task, engine))


def score(model: nn.Module, test: Split, domains: Sequence[str], task: Task, engine: Engine) -> Score:
    right = _right(model, test.images, test.labels, task, engine)
    if test.domains is None:
        return Score(_percent(right), {})
    by_domain = {
        name: _percent(right[test.domains == number])
        for number, name in enumerate(domains)
        if bool((test.domains == number).any())
    }
    return Score(sum(by_domain.values()) / len(by_domain), by_domain)


def _right(model: nn.Module, images: Tensor, labels: Tensor, task: Task, engine: Engine) -> Tensor:
    return predict(model, images, task, engine).argmax(1).cpu() == labels


def _percent(right: Tensor) -> float:
    return 100 * int(right.sum()) / len(right)
