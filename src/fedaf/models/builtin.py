"""The models that ship with fedaf, built from a task and the ``[model]`` table."""

from functools import partial
from typing import Protocol

import torch
from torch import nn

from fedaf.models.registry import MODELS
from fedaf.models.weights import initialise
from fedaf.protocol import Architecture, Key, Task


class ModelOptions(Protocol):
    """The attributes of the ``[model]`` table that built-in models use."""

    @property
    def depth(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def norm(self) -> str: ...
    @property
    def groups(self) -> int: ...


def architecture(name: str, task: Task, options: ModelOptions, classifier: str | None = None) -> Architecture:
    """Return the built-in model ``name`` for ``task``."""
    return Architecture(partial(build, name, task, options), classifier)


def build(name: str, task: Task, options: ModelOptions, key: Key) -> nn.Module:
    """Build one network with weights drawn from ``key``.

    Raises:
        UserError: If the name is unknown, or the options do not fit the task's images.
    """
    model: nn.Module = MODELS.find(name)(task, options)
    # Channels-last is twice as fast on CPUs and preferred on GPUs; a convolution follows the layout of its weights.
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return initialise(model, key)
