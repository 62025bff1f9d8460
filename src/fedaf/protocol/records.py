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
from dataclasses import MISSING, fields, is_dataclass
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
    found: dict[str, Tensor] = {}
    for field, kind in get_type_hints(type(record)).items():
        value, item = getattr(record, field), _item(kind)
        if item is None:
            found[field] = _to_tensor(value, kind)
        elif is_dataclass(item):
            for name, nested in value.items():
                if "/" in name:
                    raise ValueError(f"the name {name!r} in {field} contains '/', which separates names of tensors")
                found |= prefixed(f"{field}:{name}/", to_tensors(nested))
        else:
            found |= {f"{field}/{name}": _to_tensor(leaf, item) for name, leaf in value.items()}
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
    for field in fields(kind):  # type: ignore[arg-type]
        name, item = field.name, _item(hints[field.name])
        if item is None:
            stored = name if name in tensors else field.metadata.get("formerly", name)
            if stored in tensors:
                found[name] = _from_tensor(tensors[stored], hints[name])
            elif field.default is MISSING and field.default_factory is MISSING:
                raise KeyError(name)
        elif is_dataclass(item) and isinstance(item, type):
            nested = select(tensors, f"{name}:")
            owners = {path.partition("/")[0] for path in nested}
            found[name] = {owner: from_tensors(item, select(nested, f"{owner}/")) for owner in owners}
        else:
            found[name] = {key: _from_tensor(leaf, item) for key, leaf in select(tensors, f"{name}/").items()}
    return kind(**found)


def _item(kind: Any) -> Any:
    """Return the type of a mapping's values, or ``None`` if ``kind`` is not a mapping."""
    origin = get_origin(kind)
    return get_args(kind)[1] if isinstance(origin, type) and issubclass(origin, Mapping) else None


def _to_tensor(value: Any, kind: Any) -> Tensor:
    if kind in _DTYPES:
        return torch.tensor(value, dtype=_DTYPES[kind])
    if kind is Tensor and isinstance(value, Tensor):
        return value
    raise TypeError(f"a record holds tensors, ints, floats, mappings and records, not {kind}: {type(value).__name__}")


def _from_tensor(tensor: Tensor, kind: Any) -> Any:
    return kind(tensor.item()) if kind in _DTYPES else tensor
