"""What a reply may contain. Everything a peer sends is checked against one of these before it is used."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedaf.errors import Refused
from fedaf.protocol.payload import HEADER_LIMIT, Payload, Scalar, Tensors

_LARGEST_WEIGHT = 1e6  # one finite but absurd weight would make the average of all absurd
_LARGEST_SCALAR = 1e30  # beyond any honest measure; sums of them, and products with counts, stay finite
_MOST_BATCHES = 1 << 32  # what a client may add to a count in one round


@dataclass(frozen=True)
class Field:
    """A tensor: its type, its shape and the range of its values. A name in ``shape`` is a length that must agree
    wherever the same name is used; its bounds stand in ``Schema.lengths``. Floating values must be finite."""

    dtype: torch.dtype
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None
    equals: Tensor | None = None


@dataclass(frozen=True)
class Number:
    """A scalar: an ``int`` or a ``float`` within bounds, and within 1e30 in any case."""

    kind: type
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Schema:
    """The tensors and scalars a payload must have, all of them and no others, and ``checks`` across them."""

    fields: Mapping[str, Field] = field(default_factory=dict)
    scalars: Mapping[str, Number] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    checks: tuple[Callable[[Tensors], None], ...] = ()

    @property
    def max_bytes(self) -> int:
        """The largest honest message: a transport need not read beyond it."""
        longest = {name: high for name, (_, high) in self.lengths.items()}
        content = sum(
            math.prod(longest[n] if isinstance(n, str) else n for n in f.shape) * f.dtype.itemsize
            for f in self.fields.values()
        )
        return content + HEADER_LIMIT

    def validate(self, payload: Payload) -> None:
        """Raise ``Refused`` with the first thing that is wrong."""
        _same_names("tensor", payload.tensors, self.fields)
        _same_names("scalar", payload.scalars, self.scalars)
        seen: dict[str, int] = {}
        for name, expected in self.fields.items():
            self._validate_tensor(name, payload.tensors[name], expected, seen)
        for name, number in self.scalars.items():
            _validate_scalar(name, payload.scalars[name], number)
        for check in self.checks:
            check(payload.tensors)

    def _validate_tensor(self, name: str, value: Tensor, expected: Field, seen: dict[str, int]) -> None:
        if value.dtype != expected.dtype:
            raise Refused(f"{name} is {value.dtype}, not {expected.dtype}")
        if value.ndim != len(expected.shape):
            raise Refused(f"{name} has {value.ndim} dimensions, not {len(expected.shape)}")
        for axis, (length, wanted) in enumerate(zip(value.shape, expected.shape, strict=True)):
            if isinstance(wanted, str):
                low, high = self.lengths[wanted]
                if not low <= length <= high:
                    raise Refused(f"{name} has length {length} on axis {axis}, outside {low} to {high}")
                wanted = seen.setdefault(wanted, length)
            if length != wanted:
                raise Refused(f"{name} has length {length} on axis {axis}, not {wanted}")
        if value.numel() == 0:
            return
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise Refused(f"{name} has values that are not finite")
        if expected.low is not None and bool((value < expected.low).any()):
            raise Refused(f"{name} has values below {expected.low:g}")
        if expected.high is not None and bool((value > expected.high).any()):
            raise Refused(f"{name} has values above {expected.high:g}")
        if expected.equals is not None and not torch.equal(value, expected.equals.cpu()):
            raise Refused(f"{name} is not what was asked for")


def like(tensors: Tensors) -> dict[str, Field]:
    """Fields for a model like the one in ``tensors``: the same names, types and shapes, values no training reaches
    left out, no negative variances or counts of batches, whole numbers not far beyond those in ``tensors``."""

    def bounds(name: str, tensor: Tensor) -> tuple[float | None, float | None]:
        low = 0 if name.endswith(("running_var", "num_batches_tracked")) else -_LARGEST_WEIGHT
        if tensor.is_floating_point():
            return low, _LARGEST_WEIGHT
        return low, int(tensor.max()) + _MOST_BATCHES if tensor.numel() else None

    return {name: Field(t.dtype, tuple(t.shape), *bounds(name, t)) for name, t in tensors.items()}


def _same_names(kind: str, given: Mapping[str, object], expected: Mapping[str, object]) -> None:
    for name in expected:
        if name not in given:
            raise Refused(f"the {kind} {name} is missing")
    for name in given:
        if name not in expected:
            raise Refused(f"the {kind} {name[:80]!r} was not asked for")


def _validate_scalar(name: str, value: Scalar, number: Number) -> None:
    fits = isinstance(value, (int, float) if number.kind is float else number.kind) and not isinstance(value, bool)
    if not fits:
        raise Refused(f"{name} is a {type(value).__name__}, not a {number.kind.__name__}")
    if not abs(value) <= _LARGEST_SCALAR:  # type: ignore[arg-type]
        raise Refused(f"{name} is not finite or too large")
    if not number.low <= value <= number.high:  # type: ignore[operator]
        raise Refused(f"{name} is {value!r}, outside {number.low:g} to {number.high:g}")
