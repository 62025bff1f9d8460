"""The content of a message: named tensors and named scalars, in a format that cannot carry code."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import safetensors.torch
from torch import Tensor

from fedaf.errors import Refused

Tensors = Mapping[str, Tensor]
Scalar = bool | int | float | str

HEADER_LIMIT = 1 << 20  # names, shapes, offsets, scalars: parsing them takes many times their size and some time

_SCALARS = "scalars"
_LENGTH_BYTES = 8  # safetensors starts with the length of its JSON header, little-endian


@dataclass(frozen=True)
class Payload:
    """The content of one message.

    ``encode`` and ``decode`` are inverse. The container is safetensors, so no pickle is involved.

    Args:
        tensors: Tensors by name.
        scalars: Numbers, booleans and strings by name.
    """

    tensors: Tensors = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the content in bytes, without the framing that a transport adds."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values()) + len(self._scalar_json())

    @property
    def metadata(self) -> dict[str, str]:
        """The scalars as the metadata of a safetensors file."""
        return {_SCALARS: self._scalar_json()}

    def encode(self) -> bytes:
        """Return the payload as bytes."""
        return pack(self.tensors, self.metadata)

    @classmethod
    def decode(cls, data: bytes, *, max_bytes: int | None = None) -> "Payload":
        """Read a message from an untrusted peer. Check the result with a ``Schema`` before use.

        Raises:
            Refused: The bytes are not a message, or there are more than ``max_bytes``.
        """
        return cls.from_parts(*unpack(data, max_bytes=max_bytes))

    @classmethod
    def from_parts(cls, tensors: Tensors, metadata: Mapping[str, str]) -> "Payload":
        """Build a payload from the tensors and metadata that ``unpack`` returned."""
        return cls(tensors, read_scalars(metadata.get(_SCALARS) or "{}"))

    def _scalar_json(self) -> str:
        return json.dumps(dict(self.scalars)) if self.scalars else ""


def pack(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file; unlike in safetensors itself, names may share a tensor."""
    laid_out: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        laid_out[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return safetensors.torch.save(laid_out, metadata=metadata)


def unpack(data: bytes, *, max_bytes: int | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read untrusted bytes that ``pack`` should have made.

    Returns:
        The tensors and the metadata.

    Raises:
        Refused: The bytes cannot be read, or there are more than ``max_bytes``.
    """
    if max_bytes is not None and len(data) > max_bytes:
        raise Refused(f"a message has {len(data)} bytes, the limit is {max_bytes} bytes", code="FEDAF-MESSAGE-SIZE")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > HEADER_LIMIT:
        raise _unreadable(f"its header has {length} bytes, the limit is {HEADER_LIMIT}")
    try:
        tensors = safetensors.torch.load(data)
        metadata = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length]).get("__metadata__") or {}
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RuntimeError, RecursionError) as error:
        raise _unreadable(error) from error
    return tensors, metadata


def read_scalars(text: str) -> dict[str, Scalar]:
    """Read named numbers, booleans and strings from untrusted JSON.

    Raises:
        Refused: The text is not JSON, or holds anything else.
    """
    try:
        scalars = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(error) from error
    if not isinstance(scalars, dict) or not all(isinstance(v, Scalar) for v in scalars.values()):
        raise _unreadable("its scalars are not numbers, booleans and strings by name")
    return scalars


def _unreadable(problem: object) -> Refused:
    return Refused(f"a message cannot be read ({str(problem)[:120]})", code="FEDAF-MESSAGE-UNREADABLE")


def select(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with ``prefix``, with the prefix removed."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def prefixed(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors with ``prefix`` before every name: the inverse of ``select``."""
    return {prefix + name: t for name, t in tensors.items()}


def to_cpu(tensors: Tensors) -> dict[str, Tensor]:
    """Return the tensors on the CPU, without their gradients."""
    return {name: t.detach().to("cpu") for name, t in tensors.items()}
