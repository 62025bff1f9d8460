"""Models that users bring: ``module:factory``, an entry point, or a module or a factory given from Python.

A factory is called with ``(in_channels, image_size, num_classes)``; ``image_size`` is an integer for square images,
else ``(height, width)``.
"""

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedaf.common.registry import reason
from fedaf.models.registry import MODELS
from fedaf.models.weights import initialise
from fedaf.protocol import Architecture, Key, Task, UserError

Factory = Callable[[int, int | tuple[int, int], int], nn.Module]
PYTHON = "python:"  # prefix of the name that a configuration gives to a model from Python


def name_of(given: nn.Module | Factory) -> str:
    """Return the name under which a configuration saves a model given from Python."""
    named = given if hasattr(given, "__qualname__") else type(given)
    return f"{PYTHON}{named.__module__}.{named.__qualname__}"


def find(name: str, given: nn.Module | Factory | None, *, keep_weights: bool) -> Factory | None:
    """Return the factory of a custom model, or ``None`` if ``name`` is a built-in model.

    Args:
        name: The name in the configuration.
        given: The model that was given from Python under that name, if any.
        keep_weights: Whether training starts from the weights that the model comes with.

    Raises:
        UserError: If there is no such model, or the arguments contradict each other.
    """
    if given is not None and not name.startswith(PYTHON):
        raise UserError(
            f"the model is given from Python and named {name!r}; leave one of them out.", code="FEDAF-MODEL-CONFLICT"
        )
    if name in MODELS:
        if keep_weights:
            raise UserError(
                f"model.keep_weights has no effect on {name}; leave it out.", code="FEDAF-MODEL-KEEP-WEIGHTS"
            )
        return None
    if given is None and name.startswith(PYTHON):
        raise UserError(
            f"the model {name!r} was given from Python and is not saved in any file; give it again with "
            "fedaf.resume(DIRECTORY, model=...), fedaf.load(DIRECTORY, model=...) or fedaf.run(model=...).",
            code="FEDAF-MODEL-FROM-PYTHON",
        )
    found = MODELS.find(name) if given is None else MODELS.check(name, given)
    return (lambda *_: found) if isinstance(found, nn.Module) else found


def architecture(
    factory: Factory, task: Task, key: Key, *, name: str, classifier: str | None, keep_weights: bool
) -> Architecture:
    """Return the architecture of the factory's model.

    The model is made once, and its random numbers follow from ``key``. Each network is a copy of it, with fresh weights
    unless ``keep_weights``.

    Raises:
        UserError: If the factory fails, or makes a different model each time.
    """
    made, again = (_make(factory, task, key, name) for _ in range(2))
    if difference := first_difference(made, again, weights=keep_weights):
        raise UserError(
            f"model {name!r} is made with random {difference}; draw it with torch only.", code="FEDAF-MODEL-RANDOM"
        )

    def build(key: Key) -> nn.Module:
        model = copy.deepcopy(made)
        return model if keep_weights else initialise(model, key)

    return Architecture(build, classifier)


def first_difference(model: nn.Module, other: nn.Module, *, weights: bool = True) -> str | None:
    """Return the name of the first parameter or buffer in which two networks differ.

    Without ``weights``, parameters only need the same shape.
    """
    first, second = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (model, other))
    parameters = dict(model.named_parameters())
    for name in [*first, *(name for name in second if name not in first)]:
        if name not in first or name not in second:
            return name
        one, two = first[name], second[name]
        if is_lazy(one) or is_lazy(two):
            continue  # has no values to compare
        if one.shape != two.shape or ((weights or name not in parameters) and not torch.equal(one, two)):
            return name
    return None


def _make(factory: Factory, task: Task, key: Key, name: str) -> nn.Module:
    size = task.height if task.height == task.width else (task.height, task.width)
    arguments = (task.channels, size, task.num_classes)
    try:
        with key.seeded():
            made = factory(*arguments)
        if not isinstance(made, nn.Module):
            raise TypeError(f"it returns a {type(made).__name__}, not an nn.Module")
    except Exception as error:  # a custom factory may raise anything
        call = f"(in_channels, image_size, num_classes) = {arguments}"
        raise UserError(
            f"the factory of model {name!r} fails for {call} ({reason(error)}); fix it.", code="FEDAF-MODEL-FACTORY"
        ) from error
    try:
        return copy.deepcopy(made).cpu()  # the user's module is never changed
    except Exception as error:  # a custom module may raise anything
        raise UserError(
            f"model {name!r} cannot be copied ({reason(error)}); keep only plain values in it.", code="FEDAF-MODEL-COPY"
        ) from error
