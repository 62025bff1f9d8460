"""Models that users bring: named ``module:factory``, or a module or a factory given from Python.

A factory is called with ``(in_channels, image_size, num_classes)``; ``image_size`` is a whole number for square
images, else ``(height, width)``.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedaf.common.registry import load_custom, reason
from fedaf.models.weights import initialise
from fedaf.protocol import Architecture, Key, Task, UserError

Factory = Callable[[int, int | tuple[int, int], int], nn.Module]
PYTHON = "python:"  # begins the recorded name of a model given from Python


def name_of(given: nn.Module | Factory) -> str:
    """How a configuration records a model that was given from Python."""
    if not callable(given):
        raise UserError(f"model is {given!r}, but must be a name, an nn.Module or a callable that makes one.")
    named = given if hasattr(given, "__qualname__") else type(given)
    return f"{PYTHON}{named.__module__}.{named.__qualname__}"


def find(name: str, given: nn.Module | Factory | None) -> Factory:
    """The factory behind a name, or behind what was ``given`` from Python under that name."""
    if given is None and name.startswith(PYTHON):
        raise UserError(
            f"the model {name!r} was given from Python and no file holds it; give it again with "
            "fedaf.resume(DIRECTORY, model=...) or fedaf.run(model=...)."
        )
    found = load_custom("model", name, "module:factory") if given is None else given
    if isinstance(found, nn.Module):
        module = found
        return lambda *_: module
    if not callable(found):
        raise UserError(f"model {name!r} is {found!r}, which cannot be called; it must be a factory of an nn.Module.")
    factory: Factory = found
    return factory


def architecture(
    factory: Factory, task: Task, key: Key, *, name: str, classifier: str | None, keep_weights: bool
) -> Architecture:
    """The factory's model, made once: each network is a copy of it, with fresh weights unless ``keep_weights``. What
    the factory draws at random follows from ``key``."""
    made, again = (_make(factory, task, key, name) for _ in range(2))
    difference = first_difference(made, again, weights=keep_weights)
    if difference:
        raise UserError(
            f"model {name!r} differs each time it is made, in {difference}; draw its random numbers with torch alone."
        )

    def build(key: Key) -> nn.Module:
        model = copy.deepcopy(made)
        return model if keep_weights else initialise(model, key)

    return Architecture(build, classifier)


def first_difference(model: nn.Module, other: nn.Module, *, weights: bool = True) -> str | None:
    """The first parameter or buffer that two networks do not share; without ``weights`` parameters need only have
    the same shape."""
    ours, theirs = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (model, other))
    parameters = dict(model.named_parameters())
    for name in [*ours, *(name for name in theirs if name not in ours)]:
        if name not in ours or name not in theirs:
            return name
        mine, its = ours[name], theirs[name]
        if is_lazy(mine) or is_lazy(its):
            continue  # has no values to compare
        if mine.shape != its.shape or ((weights or name not in parameters) and not torch.equal(mine, its)):
            return name
    return None


def _make(factory: Factory, task: Task, key: Key, name: str) -> nn.Module:
    size = task.height if task.height == task.width else (task.height, task.width)
    arguments = (task.channels, size, task.num_classes)
    try:
        with key.seeded():
            made = factory(*arguments)
    except Exception as error:  # the factory is the user's, and may raise anything
        raise UserError(
            f"model {name!r} cannot be made ({reason(error)}); its factory is called with (in_channels, image_size, "
            f"num_classes), here {arguments}."
        ) from error
    if not isinstance(made, nn.Module):
        raise UserError(f"model {name!r} makes a {type(made).__name__}, but must make an nn.Module.")
    return _copied(made, name)


def _copied(model: nn.Module, name: str) -> nn.Module:
    """A copy of its own on the CPU: the user's own is never changed."""
    try:
        return copy.deepcopy(model).cpu()
    except Exception as error:  # as above
        raise UserError(
            f"model {name!r} cannot be copied ({reason(error)}); keep only parameters, buffers and plain values in it."
        ) from error
