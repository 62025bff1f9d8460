"""Fresh weights for any module, from a key alone."""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedaf.protocol import Key, Tensors

_ALIGNED = 64  # numbers; a kernel of PyTorch may want to read a parameter many at a time
_PRODUCTS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)  # layers whose weights autocast casts


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
    """How a module draws its own parameters anew; PyTorch's attention has it under a private name."""
    for name in ("reset_parameters", "_reset_parameters"):
        reset: Callable[[], object] | None = getattr(module, name, None)
        if callable(reset):
            return reset
    return None


class FreshWeights:
    """The parameters of newly initialised networks of one architecture, one network for each key.

    A step of condensation needs a new network, so they come fast: all parameters lie in one vector, and where every
    layer draws its parameters from a plain distribution, as PyTorch's own do, a draw is one call. ``draw`` chooses the
    network; ``vector`` then computes from tensors that stay where they are, so that an engine can repeat it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._scratch = copy.deepcopy(model).requires_grad_(False)
        recipes = _recipes(self._scratch)
        parameters = dict(self._scratch.named_parameters())
        kinds = {name: recipes[name].kind if recipes else "" for name in parameters}
        order = sorted(parameters, key=lambda name: ("uniform", "normal", "constant", "").index(kinds[name]))
        sizes = [-(-parameters[name].numel() // _ALIGNED) * _ALIGNED for name in order]
        starts = torch.tensor([0, *sizes]).cumsum(0).tolist()
        self._places = {name: _Place(start, parameters[name]) for name, start in zip(order, starts, strict=False)}
        device = next((p.device for p in parameters.values()), torch.device("cpu"))
        self._noise, self._offset, spread = (torch.zeros(starts[-1], device=device) for _ in range(3))
        self._spread = spread.fill_(1)
        self._uniform, self._normal = (
            sum(size for name, size in zip(order, sizes, strict=True) if kinds[name] == kind)
            for kind in ("uniform", "normal")
        )
        self._taken = torch.zeros_like(self._noise)  # one where a parameter is, zero between them
        for place in self._places.values():
            place.of(self._taken).fill_(1)
        self._known = recipes is not None
        self._factors = {
            f"{path}.weight" if path else "weight"
            for path, module in self._scratch.named_modules()
            if type(module) in _PRODUCTS
        }
        for name, recipe in (recipes or {}).items():
            self._places[name].of(self._offset).fill_(recipe.offset)
            self._places[name].of(self._spread).fill_(recipe.spread)

    def __call__(self, key: Key) -> dict[str, Tensor]:
        """Parameters only, no buffers."""
        self.draw(key)
        return self.named(self.vector())

    def draw(self, key: Key) -> None:
        """Choose the network that ``vector`` gives."""
        if not self._known:
            initialise(self._scratch, key)
            for name, p in self._scratch.named_parameters():
                self._places[name].of(self._noise).copy_(p)
            return
        generator, end = key.torch(self._noise.device), self._uniform + self._normal
        if self._uniform:
            self._noise[: self._uniform].uniform_(generator=generator)
        if self._normal:
            self._noise[self._uniform : end].normal_(generator=generator)

    def vector(self) -> Tensor:
        """All parameters of the network chosen, one after the other."""
        return torch.addcmul(self._offset, self._noise, self._spread) if self._known else self._noise.clone()

    def gaussian(self, key: Key) -> Tensor:
        """A standard normal vector in the space of the parameters; it is drawn into the same place each time."""
        return self._noise.normal_(generator=key.torch(self._noise.device)).mul_(self._taken)

    def flat(self, weights: Tensors) -> Tensor:
        """The parameters among ``weights`` as one vector, in the order of ``vector``."""
        result = torch.empty_like(self._noise)
        for name, place in self._places.items():
            place.of(result).copy_(weights[name])
        return result

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector as parameters by name: views of it, lying in memory as those of the model do. Under autocast those
        that it would cast come cast, all at once."""
        device = vector.device.type
        if not torch.is_autocast_enabled(device):
            return {name: place.of(vector).to(place.dtype) for name, place in self._places.items()}
        cast = vector.to(torch.get_autocast_dtype(device))
        return {
            name: place.of(cast) if name in self._factors else place.of(vector).to(place.dtype)
            for name, place in self._places.items()
        }


class _Place:
    """Where a parameter lies in the vector."""

    def __init__(self, start: int, parameter: Tensor) -> None:
        dense = torch.ops.aten.is_non_overlapping_and_dense(parameter)
        self._start, self._shape, self.dtype = start, parameter.shape, parameter.dtype
        self._stride = (parameter if dense else parameter.contiguous()).stride()

    def of(self, vector: Tensor) -> Tensor:
        return vector.as_strided(self._shape, self._stride, vector.storage_offset() + self._start)


class _Recipe(NamedTuple):
    """Of a parameter: offset + spread * noise, with noise uniform on [0, 1) or standard normal."""

    kind: str
    offset: float
    spread: float


def _recipes(model: nn.Module) -> Mapping[str, _Recipe] | None:
    """How each parameter is drawn when the model is initialised, found out by watching it once; ``None`` where some
    parameter is not drawn from a plain distribution."""
    parameters = dict(model.named_parameters())
    with _Watch() as watch:
        initialise(model, Key(0))
    if dict(model.named_parameters()).keys() != parameters.keys():
        return None
    found = {}
    for name, p in model.named_parameters():
        last = watch.writes.get(p.untyped_storage().data_ptr())
        if p is not parameters[name] or last is None or last.numel != p.numel():
            return None
        recipe = _recipe(last.function, last.arguments)
        if recipe is None or not all(map(math.isfinite, recipe[1:])):
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


class _Write(NamedTuple):
    function: str
    numel: int
    arguments: Mapping[str, Any]


class _Watch(TorchDispatchMode):
    """Keeps the last operation that wrote into each piece of memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.writes: dict[int, _Write] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)} | (kwargs or {})
        for argument in func._schema.arguments:
            target = given.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(target, Tensor):
                memory = target.untyped_storage().data_ptr()
                self.writes[memory] = _Write(func._schema.name, target.numel(), given)
        return func(*args, **(kwargs or {}))
