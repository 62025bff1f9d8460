"""The messages that a transport carries: a request to a client, and what came back for it."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedaf.errors import FedafError, Refused
from fedaf.protocol.keys import Key
from fedaf.protocol.payload import Payload, pack, read_scalars, unpack

_HEADER = "request"
_HEADER_FIELDS: dict[str, type[Any]] = {
    "run": str,
    "round": int,
    "phase": str,
    "accepted": int,
    "key": int,
    "seconds": float,
}
_LONGEST_NAME = 100  # of a run or a phase; a client writes the run to its disk


@dataclass(frozen=True)
class Request:
    """What the server asks one client to do in one phase.

    Args:
        run: Identifies the run to its clients. It does not change when the run is resumed.
        round: The current round, counted from 1.
        phase: Name of the phase.
        accepted: The last round in which the server accepted this client's replies (0: none). The client keeps the
            state of that round and discards any later one.
        key: The random key of this client, round and phase. It reveals neither the run's seed nor other keys.
        ask: The content of the request, made by ``Phase.ask``.
        seconds: How long the client may take; ``None`` means no limit.
    """

    run: str
    round: int
    phase: str
    accepted: int
    key: Key
    ask: Payload
    seconds: float | None = None

    def encode(self) -> bytes:
        """Return the request as bytes: the ask with a header."""
        header = {name: getattr(self, name) for name in _HEADER_FIELDS}
        header |= {"key": self.key.value, "seconds": float(self.seconds or 0)}
        return pack(self.ask.tensors, {**self.ask.metadata, _HEADER: json.dumps(header)})

    @classmethod
    def decode(cls, data: bytes, *, max_bytes: int | None = None) -> "Request":
        """Read a request from an untrusted server.

        Raises:
            Refused: The bytes are not a valid request, or there are more than ``max_bytes``.
        """
        tensors, metadata = unpack(data, max_bytes=max_bytes)
        given = read_scalars(metadata.get(_HEADER) or "{}")
        header: dict[str, Any] = {name: given.get(name) for name in _HEADER_FIELDS}
        for name, value in header.items():
            if not _is_valid(name, value):
                raise Refused(f"{name} is missing or invalid in the header of a request", code="FEDAF-REQUEST-HEADER")
        header |= {"key": Key(header["key"]), "seconds": header["seconds"] or None}
        return cls(**header, ask=Payload.from_parts(tensors, metadata))


def _is_valid(name: str, value: Any) -> bool:
    """Return whether the header of a request may have this value."""
    if type(value) is not _HEADER_FIELDS[name]:
        return False
    if isinstance(value, str):
        return len(value) <= _LONGEST_NAME and value.isprintable()
    low, end = (1 if name == "round" else 0), (math.inf if name == "seconds" else 2**63)
    return bool(low <= value < end)


@dataclass(frozen=True)
class Replied:
    """A client's reply, not checked yet.

    Args:
        payload: The content of the reply.
        seconds: Where the transport measures time: ``elapsed`` until the reply arrived and, as the client reports
            them, the seconds it spent on ``import``, ``data``, ``model`` and ``work``.
        publishable: Whether the client allows its condensed images to be published; not if it does not say so.
    """

    payload: Payload
    seconds: Mapping[str, float] = field(default_factory=dict)
    publishable: bool = False


@dataclass(frozen=True)
class Failed:
    """A client that could not reply, or refused to; ``reason`` ends with the error's code if it has one."""

    reason: str

    @classmethod
    def from_error(cls, error: Exception) -> "Failed":
        """Return the failure of a client whose work raised ``error``, with the message cut to a readable length."""
        if isinstance(error, FedafError):
            return cls(f"{str(error)[:300]} [{error.code}]")
        return cls(f"{type(error).__name__}: {str(error)[:200]}")


@dataclass(frozen=True)
class Silent:
    """A client that did not reply before the deadline."""

    reason: str = "no reply before the deadline [FEDAF-REPLY-LATE]"


#: What came back for a request.
Delivery = Replied | Failed | Silent
