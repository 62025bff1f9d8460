"""Fresh weights for any module, drawn from a key."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedaf.protocol import Key, Tensors

_ALIGNED = 64  # elements; some kernels of PyTorch read parameters in vectors
_AUTOCAST = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose weights autocast casts


def initialise(model: nn.Module, key: Key) -> nn.Module:
    """Reset every layer of ``model`` in place with its own scheme, children before their parents."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with key.seeded(device), torch.no_grad():
        for module in reversed(list(model.modules())):
            reset = reset_of(module)
            if reset is not None:
                reset()
    return model


def reset_of(module: nn.Module) -> Callable[[], object] | None:
    """Return the method that draws a module's parameters; PyTorch's attention has it under a private name."""
    for name in ("reset_parameters", "_reset_parameters"):
        reset: Callable[[], object] | None = getattr(module, name, None)
        if callable(reset):
            return reset
    return None


class FreshWeights:
    """The parameters of freshly initialised networks of one architecture, one network per key.

    Condensation needs a new network in every step, so drawing is fast: all parameters are stored in one vector, and if
    every layer draws from a uniform or normal distribution, as PyTorch's layers do, a draw is one or two calls.
    ``draw`` selects the network; ``vector`` then reads and writes fixed tensors, so that an engine can capture it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._scratch = copy.deepcopy(model).requires_grad_(False)
        recipes = _recipes(self._scratch)
        parameters = dict(self._scratch.named_parameters())
        kinds = {name: recipes[name].kind if recipes else "" for name in parameters}
        order = sorted(parameters, key=lambda name: ("uniform", "normal", "constant", "").index(kinds[name]))
        sizes = [-(-parameters[name].numel() // _ALIGNED) * _ALIGNED for name in order]
        starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
        self._slots = {name: _Slot(start, parameters[name]) for name, start in zip(order, starts, strict=False)}
        device = next((p.device for p in parameters.values()), torch.device("cpu"))
        self._noise, self._offset, spread = (torch.zeros(starts[-1], device=device) for _ in range(3))
        self._spread = spread.fill_(1)
        self._uniform, self._normal = (
            sum(size for name, size in zip(order, sizes, strict=True) if kinds[name] == kind)
            for kind in ("uniform", "normal")
        )
        self._mask = torch.zeros_like(self._noise)  # 1 for parameters, 0 for padding
        for slot in self._slots.values():
            slot.of(self._mask).fill_(1)
        self._known = recipes is not None
        self._cast_weights = {
            f"{path}.weight" if path else "weight"
            for path, module in self._scratch.named_modules()
            if type(module) in _AUTOCAST
        }
        for name, recipe in (recipes or {}).items():
            self._slots[name].of(self._offset).fill_(recipe.offset)
            self._slots[name].of(self._spread).fill_(recipe.spread)

    def __call__(self, key: Key) -> dict[str, Tensor]:
        """Return the parameters of the network of ``key``, without buffers."""
        self.draw(key)
        return self.named(self.vector())

    def draw(self, key: Key) -> None:
        """Select the network that ``vector`` returns."""
        if not self._known:
            initialise(self._scratch, key)
            for name, p in self._scratch.named_parameters():
                self._slots[name].of(self._noise).copy_(p)
            return
        generator, end = key.torch(self._noise.device), self._uniform + self._normal
        if self._uniform:
            self._noise[: self._uniform].uniform_(generator=generator)
        if self._normal:
            self._noise[self._uniform : end].normal_(generator=generator)

    def vector(self) -> Tensor:
        """Return all parameters of the selected network as one vector."""
        return torch.addcmul(self._offset, self._noise, self._spread) if self._known else self._noise.clone()

    def gaussian(self, key: Key) -> Tensor:
        """Return a standard normal vector of the parameters' size; each call overwrites the same tensor."""
        return self._noise.normal_(generator=key.torch(self._noise.device)).mul_(self._mask)

    def flat(self, weights: Tensors) -> Tensor:
        """Return the parameters in ``weights`` as one vector, in the order of ``vector``."""
        result = torch.empty_like(self._noise)
        for name, slot in self._slots.items():
            slot.of(result).copy_(weights[name])
        return result

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a vector as parameters by name: views with the strides of the model's parameters.

        Under autocast, the weights that it would cast are cast here, all in one call.
        """
        device = vector.device.type
        if not torch.is_autocast_enabled(device):
            return {name: slot.of(vector).to(slot.dtype) for name, slot in self._slots.items()}
        cast = vector.to(torch.get_autocast_dtype(device))
        return {
            name: slot.of(cast) if name in self._cast_weights else slot.of(vector).to(slot.dtype)
            for name, slot in self._slots.items()
        }


class _Slot:
    """The position of a parameter in the vector."""

    def __init__(self, start: int, parameter: Tensor) -> None:
        dense = torch.ops.aten.is_non_overlapping_and_dense(parameter)
        self._start, self._shape, self.dtype = start, parameter.shape, parameter.dtype
        self._stride = (parameter if dense else parameter.contiguous()).stride()

    def of(self, vector: Tensor) -> Tensor:
        return vector.as_strided(self._shape, self._stride, vector.storage_offset() + self._start)


class _Recipe(NamedTuple):
    """How a parameter is drawn: offset + spread * noise, with noise uniform on [0, 1) or standard normal."""

    kind: str
    offset: float
    spread: float


def _recipes(model: nn.Module) -> Mapping[str, _Recipe] | None:
    """Return how each parameter is drawn, found by observing one initialisation.

    ``None`` means that some parameter is not constant, uniform or normal.
    """
    parameters = dict(model.named_parameters())
    with _WriteLog() as log:
        initialise(model, Key(0))
    if dict(model.named_parameters()).keys() != parameters.keys():
        return None
    found = {}
    for name, p in model.named_parameters():
        function, numel, arguments = log.writes.get(p.untyped_storage().data_ptr(), ("", 0, {}))
        recipe = _recipe(function, arguments)
        if recipe is None or not all(map(math.isfinite, recipe[1:])) or p is not parameters[name] or numel != p.numel():
            return None
        found[name] = recipe
    return found


def _recipe(function: str, given: Mapping[str, Any]) -> _Recipe | None:
    if function == "aten::uniform_":
        low, high = given.get("from", 0.0), given.get("to", 1.0)
        return _Recipe("uniform", low, high - low)
    if function == "aten::normal_":
        return _Recipe("normal", given.get("mean", 0.0), given.get("std", 1.0))
    if function == "aten::zero_":
        return _Recipe("constant", 0.0, 0.0)
    if function == "aten::fill_" and isinstance(given["value"], int | float):
        return _Recipe("constant", float(given["value"]), 0.0)
    return None


class _WriteLog(TorchDispatchMode):
    """Records the last operation that wrote to each tensor storage: its name, the elements written, its arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes: dict[int, tuple[str, int, Mapping[str, Any]]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this, PyTorch imports its compiler at the first recorded operation, which takes over a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | (kwargs or {})
        for argument in func._schema.arguments:
            target = given.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(target, Tensor):
                self.writes[target.untyped_storage().data_ptr()] = func._schema.name, target.numel(), given
        return func(*args, **(kwargs or {}))
