"""The models by name; one's own is named ``module:factory``."""

import torch
from torch import nn

from fedaf.common.naming import nearest
from fedaf.models import custom as own
from fedaf.models.convnet import ConvNet
from fedaf.models.resnet import ResNet18
from fedaf.models.weights import initialise
from fedaf.protocol import Key, Task, UserError

MODELS = ("convnet", "resnet18")


def check_name(name: str) -> None:
    if name not in MODELS:
        raise UserError(
            f"unknown model {name!r}{nearest(name, MODELS)}; allowed is one of {', '.join(MODELS)}, or module:factory."
        )


def find(name: str, given: nn.Module | own.Factory | None, *, keep_weights: bool) -> own.Factory | None:
    """The factory of a model of one's own, ``given`` from Python or named; ``None`` for the models that are here."""
    if given is not None and not name.startswith(own.PYTHON):
        raise UserError(f"a model was given from Python, but the configuration names {name!r}; leave one of them out.")
    if ":" in name:
        return own.find(name, given)
    check_name(name)
    if keep_weights:
        raise UserError(f"model.keep_weights has no effect on {name}, which comes without weights; leave it out.")
    return None


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
