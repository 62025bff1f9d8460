"""The models by name."""

import torch
from torch import nn

from fedaf.models.convnet import ConvNet
from fedaf.models.resnet import ResNet18
from fedaf.models.weights import initialise
from fedaf.naming import nearest
from fedaf.protocol import Key, Task, UserError

MODELS = ("convnet", "resnet18")


def check_name(name: str) -> None:
    if name not in MODELS:
        raise UserError(f"unknown model {name!r}{nearest(name, MODELS)}; allowed is one of {', '.join(MODELS)}.")


def build(name: str, task: Task, key: Key, *, depth: int, width: int, norm: str) -> nn.Module:
    """A model for ``task``, initialised from ``key``. ``depth`` and ``width`` are the ConvNet's."""
    check_name(name)
    model: nn.Module
    if name == "resnet18":
        if norm == "instance" and min(task.height, task.width) <= 32:
            raise UserError(
                f"resnet18 shrinks {task.height}x{task.width} images to single pixels, which instance norm erases; "
                "use model.norm=batch."
            )
        model = ResNet18(task.channels, task.num_classes, norm=norm)
    else:
        model = ConvNet(*task.image_shape, task.num_classes, depth=depth, filters=width, norm=norm)
    # Twice as fast on CPUs, and what GPUs want; a convolution follows the layout of its weights.
    laid_out: nn.Module = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return initialise(laid_out, key)
