"""Schemas: what a reply may contain. Everything a peer sends is checked against a schema before it is used."""

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
    """A tensor that a reply must contain. Floating-point values must also be finite.

    Args:
        dtype: Its data type.
        shape: Its shape. A string is a named length that must agree wherever the name is used; ``Schema.lengths``
            has its bounds.
        low: Smallest value allowed.
        high: Largest value allowed.
        among: The only values allowed.
    """

    dtype: torch.dtype
    shape: tuple[int | str, ...]
    low: float | None = None
    high: float | None = None
    among: Tensor | None = None


@dataclass(frozen=True)
class Number:
    """A scalar that a reply must contain. Its magnitude may not exceed 1e30.

    Args:
        kind: ``int`` or ``float``; an ``int`` is accepted as a ``float``.
        low: Smallest value allowed.
        high: Largest value allowed.
    """

    kind: type
    low: float = -math.inf
    high: float = math.inf


@dataclass(frozen=True)
class Schema:
    """The exact content of a reply: all of these tensors and scalars, and no others.

    Args:
        fields: Tensors by name.
        scalars: Scalars by name.
        lengths: Bounds (smallest, largest) of the named lengths in shapes.
        checks: Functions of all tensors, called last; they raise ``Refused``.
    """

    fields: Mapping[str, Field] = field(default_factory=dict)
    scalars: Mapping[str, Number] = field(default_factory=dict)
    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    checks: tuple[Callable[[Tensors], None], ...] = ()

    @property
    def max_bytes(self) -> int:
        """Size of the largest valid message. A transport may refuse longer ones unread."""
        longest = {name: high for name, (_, high) in self.lengths.items()}
        content = sum(
            math.prod(longest[n] if isinstance(n, str) else n for n in f.shape) * f.dtype.itemsize
            for f in self.fields.values()
        )
        return content + HEADER_LIMIT

    def validate(self, payload: Payload) -> None:
        """Check a payload.

        Raises:
            Refused: The payload breaks a rule; the message names the first one.
        """
        _same_names("tensor", payload.tensors, self.fields)
        _same_names("scalar", payload.scalars, self.scalars)
        lengths = dict(self.lengths)
        for name, expected in self.fields.items():
            _validate_tensor(name, payload.tensors[name], expected, lengths)
        for name, number in self.scalars.items():
            _validate_scalar(name, payload.scalars[name], number)
        for check in self.checks:
            check(payload.tensors)


def like(tensors: Tensors) -> dict[str, Field]:
    """Return the fields of a model with the names, types and shapes of ``tensors``.

    Absurdly large values, negative variances, negative batch counts and integers far above those in ``tensors`` are
    not allowed.
    """

    def bounds(name: str, tensor: Tensor) -> tuple[float | None, float | None]:
        low = 0 if name.endswith(("running_var", "num_batches_tracked")) else -_LARGEST_WEIGHT
        if tensor.is_floating_point():
            return low, _LARGEST_WEIGHT
        return low, int(tensor.max()) + _MOST_BATCHES if tensor.numel() else None

    return {name: Field(t.dtype, tuple(t.shape), *bounds(name, t)) for name, t in tensors.items()}


def _same_names(kind: str, given: Mapping[str, object], expected: Mapping[str, object]) -> None:
    if missing := [name for name in expected if name not in given]:
        raise Refused(f"the {kind} {missing[0]} is missing", code="FEDAF-REPLY-NAMES")
    if extra := [name for name in given if name not in expected]:
        raise Refused(f"the {kind} {extra[0][:80]!r} was not asked for", code="FEDAF-REPLY-NAMES")


def _validate_tensor(name: str, value: Tensor, expected: Field, lengths: dict[str, tuple[int, int]]) -> None:
    """Check one tensor. The first one with a named length fixes this length in ``lengths`` for all others."""
    if value.dtype != expected.dtype:
        raise Refused(f"{name} is {value.dtype}, expected {expected.dtype}", code="FEDAF-REPLY-TYPE")
    if value.ndim != (axes := len(expected.shape)):
        raise Refused(f"{name} has {value.ndim} dimensions, expected {axes}", code="FEDAF-REPLY-SHAPE")
    for axis, (length, wanted) in enumerate(zip(value.shape, expected.shape, strict=True)):
        low, high = lengths[wanted] if isinstance(wanted, str) else (wanted, wanted)
        if not low <= length <= high:
            allowed = f"{low} to {high}" if low < high else low
            raise Refused(f"{name} has length {length} on axis {axis}, expected {allowed}", code="FEDAF-REPLY-SHAPE")
        if isinstance(wanted, str):
            lengths[wanted] = length, length
    if value.numel() == 0:
        return
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        raise Refused(f"{name} has values that are not finite", code="FEDAF-REPLY-NOT-FINITE")
    if expected.low is not None and bool((value < expected.low).any()):
        raise Refused(f"{name} has values below {expected.low:g}", code="FEDAF-REPLY-RANGE")
    if expected.high is not None and bool((value > expected.high).any()):
        raise Refused(f"{name} has values above {expected.high:g}", code="FEDAF-REPLY-RANGE")
    if expected.among is not None and not bool(torch.isin(value, expected.among.cpu()).all()):
        raise Refused(f"{name} has values that were not asked for", code="FEDAF-REPLY-VALUE")


def _validate_scalar(name: str, value: Scalar, number: Number) -> None:
    kind, given = number.kind.__name__, type(value).__name__
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind == "float" else number.kind):
        raise Refused(f"{name} has type {given}, expected {kind}", code="FEDAF-REPLY-TYPE")
    if not abs(value) <= _LARGEST_SCALAR:  # type: ignore[arg-type]
        raise Refused(f"{name} is not finite or too large", code="FEDAF-REPLY-NOT-FINITE")
    if not number.low <= value <= number.high:  # type: ignore[operator]
        raise Refused(f"{name} is {value!r}, expected {number.low:g} to {number.high:g}", code="FEDAF-REPLY-RANGE")
