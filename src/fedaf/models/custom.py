"""Models that users bring: ``module:factory``, an entry point, or a module or a factory given from Python.

A factory is called with ``(in_channels, image_size, num_classes)``; ``image_size`` is an integer for square images,
else ``(height, width)``.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
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


class CustomOptions(Protocol):
    """The attributes of the ``[model]`` table that are about custom models."""

    @property
    def name(self) -> str: ...
    @property
    def keep_weights(self) -> bool: ...
    @property
    def output(self) -> int | str | None: ...
    @property
    def weights(self) -> str | None: ...


def find(options: CustomOptions, given: nn.Module | Factory | None) -> Factory | None:
    """Return the factory of a custom model, or ``None`` if the options name a built-in model.

    Args:
        options: The ``[model]`` table.
        given: The model that was given from Python under its name, if any.

    Raises:
        UserError: If there is no such model, or the options contradict each other.
    """
    name = options.name
    if given is not None and not name.startswith(PYTHON):
        raise UserError(
            f"the model is given from Python and named {name!r}; leave one of them out.", code="FEDAF-MODEL-CONFLICT"
        )
    if name in MODELS:
        if options.keep_weights:
            what = f"model.keep_weights has no effect on {name}; leave it out."
            raise UserError(what, code="FEDAF-MODEL-KEEP-WEIGHTS")
        if options.output is not None:
            raise UserError(f"model.output has no effect on {name}; leave it out.", code="FEDAF-MODEL-OUTPUT")
        return None
    if options.keep_weights and options.weights is not None:
        what = "model.keep_weights starts from the weights of the model, and model.weights from those of a file"
        raise UserError(f"{what}; leave one of them out.", code="FEDAF-MODEL-KEEP-WEIGHTS")
    if given is None and name.startswith(PYTHON):
        raise UserError(
            f"the model {name!r} was given from Python and is not saved in any file; give it again with "
            "fedaf.resume(DIRECTORY, model=...), fedaf.load(DIRECTORY, model=...) or fedaf.run(model=...).",
            code="FEDAF-MODEL-FROM-PYTHON",
        )
    found = MODELS.find(name) if given is None else MODELS.check(name, given)
    return (lambda *_: found) if isinstance(found, nn.Module) else found


def architecture(
    factory: Factory,
    task: Task,
    key: Key,
    *,
    name: str,
    classifier: str | None,
    keep_weights: bool,
    output: int | str | None = None,
) -> Architecture:
    """Return the architecture of the factory's model.

    The model is made once, and its random numbers follow from ``key``. Each network is a copy of it, with fresh weights
    unless ``keep_weights``. ``output`` selects one of several outputs of its forward pass.

    Raises:
        UserError: If the factory fails, or makes a different model each time.
    """
    made, again = (_make(factory, task, key, name) for _ in range(2))
    if difference := first_difference(made, again, weights=keep_weights):
        raise UserError(
            f"model {name!r} is made with random {difference}; draw it with torch only.", code="FEDAF-MODEL-RANDOM"
        )

    if output is not None:
        made.register_forward_hook(_Select(output))

    def build(key: Key) -> nn.Module:
        model = copy.deepcopy(made)
        return model if keep_weights else initialise(model, key)

    return Architecture(build, classifier)


@dataclass(frozen=True)
class _Select:
    """A forward hook that replaces several outputs by one of them; a single tensor stays as it is.

    Some models return several outputs in train mode only.
    """

    output: int | str

    def __call__(self, _model: nn.Module, _inputs: Any, outputs: Any) -> Any:
        if isinstance(outputs, Tensor):
            return outputs
        try:
            return outputs[self.output]
        except (LookupError, TypeError) as error:
            what = f"model.output is {self.output!r}, but the model returns {described(outputs)}"
            raise UserError(f"{what}; choose one of them.", code="FEDAF-MODEL-OUTPUT") from error


def described(outputs: Any) -> str:
    """Describe what a forward pass returned: ``a tuple of 0 (float32 [2, 10]) and 1 (float32 [2, 5])``."""
    if isinstance(outputs, Tensor):
        return f"{str(outputs.dtype).removeprefix('torch.')} {list(outputs.shape)}"
    kind = f"a {type(outputs).__name__}"
    if isinstance(outputs, Mapping):
        parts = list(outputs.items())
    else:
        parts = list(enumerate(outputs)) if isinstance(outputs, Sequence) and not isinstance(outputs, str) else []
    if not parts:
        return kind
    shown = [f"{key} ({described(part)})" for key, part in parts]
    return f"{kind} of {', '.join(shown[:-1])}{' and ' if shown[1:] else ''}{shown[-1]}"


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
