"""What the federation asks of a transport: carry these requests to these clients, until their time is up."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedaf.protocol import Key, Payload, Phase, Refused, Tensors, pack, read_scalars, unpack

_HEADER = "request"
_HEADER_FIELDS = {"run": str, "round": int, "phase": str, "accepted": int, "key": int, "seconds": float}
_HEADER_RANGES = {"round": (1, 2**63), "accepted": (0, 2**63), "key": (0, 2**63), "seconds": (0, math.inf)}
_LONGEST_NAME = 100  # of a run or a phase; a client writes the run to its disk


@dataclass(frozen=True)
class Request:
    """One ask on its way to one client. ``accepted`` is the last round of this client that the server accepted:
    the client keeps the state of that round and discards any later one. ``key`` is this client's own, of this round
    and phase: it tells neither another's nor the run's seed. ``seconds`` is the time the client has, if bounded."""

    run: str
    round: int
    phase: str
    accepted: int
    key: Key
    ask: Payload
    seconds: float | None = None

    def encode(self) -> bytes:
        """As bytes for a wire: the ask with a header."""
        header = {
            "run": self.run,
            "round": self.round,
            "phase": self.phase,
            "accepted": self.accepted,
            "key": self.key.value,
            "seconds": float(self.seconds or 0),
        }
        return pack(self.ask.tensors, {**self.ask.metadata, _HEADER: json.dumps(header)})

    @classmethod
    def decode(cls, data: bytes, *, max_bytes: int | None = None) -> "Request":
        """Read a request from an untrusted server, or raise ``Refused``."""
        tensors, metadata = unpack(data, max_bytes=max_bytes)
        header: Mapping[str, Any] = read_scalars(metadata.get(_HEADER) or "{}")
        for name, kind in _HEADER_FIELDS.items():
            if type(header.get(name)) is not kind:
                raise Refused(f"a request must have a header with {name}, of type {kind.__name__}")
        if not all(low <= header[name] < end for name, (low, end) in _HEADER_RANGES.items()):
            raise Refused("a request's header has a number out of range")
        if not all(len(header[name]) <= _LONGEST_NAME and header[name].isprintable() for name in ("run", "phase")):
            raise Refused(f"a request's run and phase must be printable names of at most {_LONGEST_NAME} characters")
        return cls(
            run=header["run"],
            round=header["round"],
            phase=header["phase"],
            accepted=header["accepted"],
            key=Key(header["key"]),
            ask=Payload.from_parts(tensors, metadata),
            seconds=header["seconds"] or None,
        )


@dataclass(frozen=True)
class Replied:
    """``seconds`` are told by a transport that costs time: what passed until the reply was here (``elapsed``), and of
    that what the client says it took to ``import``, for its ``data``, its ``model`` and its ``work``."""

    payload: Payload
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    reason: str


@dataclass(frozen=True)
class Silent:
    reason: str = "no answer before the deadline"


Delivery = Replied | Failed | Silent

#: Called as a phase goes on with the client at work (or a word for all), steps done and steps in all.
Listener = Callable[[str, int, int], None]


class Transport(Protocol):
    """Carries a phase. Every request has exactly one delivery; a transport never raises for a client's fault."""

    def clients(self) -> Sequence[str]:
        """Who can be asked now, in an order that does not depend on who came first. Raises ``BelowQuorum`` where too
        few came in time."""

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        """Deliver requests of one phase; a client that does not answer in their ``seconds`` is ``Silent``. A reply
        that comes later is dropped: schemas cannot tell the replies of two rounds apart."""

    def checkpoint(self) -> Mapping[str, Tensors]:
        """The state of clients that live in this process; empty where clients keep their own."""

    def restore(self, records: Mapping[str, Tensors]) -> None:
        """Take back what ``checkpoint`` gave."""
