"""Typed records as named tensors, for checkpoints.

A record is a dataclass whose fields are tensors, ints, floats, mappings from names to these, or mappings from names to
records. It is written as tensors with names that follow from its fields:

=========================================  ==================================
field                                      tensor names
=========================================  ==================================
``labels: Tensor``, ``round: int``         ``labels``, ``round``
``drift: Mapping[str, Tensor]``            ``drift/<name>``
``condensed: Mapping[str, Record]``        ``condensed:<name>/<field>``
=========================================  ==================================

A field with a default may be missing. A renamed field can still be read under its old tensor name: ``formerly``.

Example:
    >>> @dataclass(frozen=True)
    ... class Memory:
    ...     total: Tensor
    ...     samples: Mapping[str, float] = field(default_factory=dict)
    >>> to_tensors(Memory(torch.zeros(2), {"client-0": 8.0})).keys()
    dict_keys(['total', 'samples/client-0'])
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from fedaf.protocol.payload import Tensors, prefixed, select

R = TypeVar("R")

_DTYPES = {int: torch.int64, float: torch.float64}


def formerly(tensor_name: str) -> dict[str, str]:
    """Return the ``metadata`` of a dataclass field that older checkpoints store under another tensor name."""
    return {"formerly": tensor_name}


def to_tensors(record: Any) -> dict[str, Tensor]:
    """Return a record's content as named tensors; ``None`` has none."""
    if record is None:
        return {}
    hints = get_type_hints(type(record))
    found: dict[str, Tensor] = {}
    for each in fields(record):
        value, kind = getattr(record, each.name), hints[each.name]
        if not _is_mapping(kind):
            found[each.name] = _to_tensor(value, kind)
        elif _is_record(item := get_args(kind)[1]):
            for name, nested in value.items():
                if "/" in name:
                    raise ValueError(f"the name {name!r} in {each.name} contains '/', which separates names of tensors")
                found |= prefixed(f"{each.name}:{name}/", to_tensors(nested))
        else:
            found |= {f"{each.name}/{name}": _to_tensor(leaf, item) for name, leaf in value.items()}
    return found


def from_tensors(kind: type[R], tensors: Tensors) -> R:
    """Return the record that ``to_tensors`` wrote.

    Args:
        kind: The record's class.
        tensors: Its content, by name.

    Raises:
        KeyError: A tensor is missing and its field has no default.
        RuntimeError: An int or float is not stored as a single value.
    """
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        of_field = hints[each.name]
        if _is_mapping(of_field):
            found[each.name] = _mapping(each.name, get_args(of_field)[1], tensors)
        elif (name := _stored_name(each, tensors)) is not None:
            found[each.name] = _from_tensor(tensors[name], of_field)
    return kind(**found)


def _mapping(field: str, item: Any, tensors: Tensors) -> dict[str, Any]:
    if not _is_record(item):
        return {name: _from_tensor(leaf, item) for name, leaf in select(tensors, f"{field}/").items()}
    nested = select(tensors, f"{field}:")
    return {
        name: from_tensors(item, select(nested, f"{name}/")) for name in {name.partition("/")[0] for name in nested}
    }


def _stored_name(field: "Field[Any]", tensors: Tensors) -> str | None:
    """Return the tensor that holds a field, or ``None`` if the field is missing and has a default."""
    for name in (field.name, field.metadata.get("formerly")):
        if name in tensors:
            return name
    if field.default is MISSING and field.default_factory is MISSING:
        raise KeyError(field.name)
    return None


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind)


def _is_mapping(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _to_tensor(value: Any, kind: Any) -> Tensor:
    if kind in _DTYPES:
        return torch.tensor(value, dtype=_DTYPES[kind])
    if kind is Tensor and isinstance(value, Tensor):
        return value
    raise TypeError(f"a record holds tensors, ints, floats, mappings and records, not {kind}: {type(value).__name__}")


def _from_tensor(tensor: Tensor, kind: Any) -> Any:
    return kind(tensor.item()) if kind in _DTYPES else tensor
