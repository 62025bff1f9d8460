"""What travels between server and client: named tensors and named scalars, and nothing that can run."""

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
    """One message. ``encode`` and ``decode`` are inverse; the container is safetensors, so no pickle is involved."""

    tensors: Tensors = field(default_factory=dict)
    scalars: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """The bytes of content: what every transport must carry, whatever framing it adds."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values()) + len(self._scalar_json())

    @property
    def metadata(self) -> dict[str, str]:
        """What goes beside the tensors in ``pack``."""
        return {_SCALARS: self._scalar_json()}

    def encode(self) -> bytes:
        return pack(self.tensors, self.metadata)

    @classmethod
    def decode(cls, data: bytes, *, max_bytes: int | None = None) -> "Payload":
        """Read a message from an untrusted peer, or raise ``Refused``; what it *means* is for ``Schema`` to judge."""
        return cls.from_parts(*unpack(data, max_bytes=max_bytes))

    @classmethod
    def from_parts(cls, tensors: Tensors, metadata: Mapping[str, str]) -> "Payload":
        """From what ``unpack`` gave."""
        return cls(tensors, read_scalars(metadata.get(_SCALARS) or "{}"))

    def _scalar_json(self) -> str:
        return json.dumps(dict(self.scalars)) if self.scalars else ""


def pack(tensors: Tensors, metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as the bytes of a safetensors file; unlike safetensors' own, names may share a tensor."""
    laid_out: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        storage = tensor.untyped_storage().data_ptr()
        laid_out[name] = tensor.clone() if storage in storages else tensor
        storages.add(storage)
    return safetensors.torch.save(laid_out, metadata=metadata)


def unpack(data: bytes, *, max_bytes: int | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The inverse of ``pack`` for bytes nobody vouches for: tensors and metadata, or ``Refused``."""
    if max_bytes is not None and len(data) > max_bytes:
        raise Refused(f"a message of {len(data)} bytes is over the limit of {max_bytes}")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > HEADER_LIMIT:
        raise Refused(
            f"a message of {len(data)} bytes cannot be read (its header is {length} bytes, the limit is {HEADER_LIMIT})"
        )
    try:
        tensors = safetensors.torch.load(data)
        metadata = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + length]).get("__metadata__") or {}
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, RuntimeError, RecursionError) as error:
        raise Refused(f"a message of {len(data)} bytes cannot be read ({str(error)[:120]})") from error
    return tensors, metadata


def read_scalars(text: str) -> dict[str, Scalar]:
    """Named numbers, booleans and strings from JSON, or ``Refused``."""
    try:
        scalars = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the scalars of a message cannot be read ({str(error)[:120]})") from error
    if not isinstance(scalars, dict) or not all(isinstance(v, Scalar) for v in scalars.values()):
        raise Refused("the scalars of a message must be numbers, booleans or strings")
    return scalars


def select(tensors: Tensors, prefix: str) -> dict[str, Tensor]:
    """The tensors whose name starts with ``prefix``, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def prefixed(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    """The inverse of ``select``."""
    return {prefix + name: t for name, t in tensors.items()}


def to_cpu(tensors: Tensors) -> dict[str, Tensor]:
    return {name: t.detach().to("cpu") for name, t in tensors.items()}
