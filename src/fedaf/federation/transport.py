"""What the federation asks of a transport: carry these requests to these clients, until a deadline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedaf.protocol import Key, Payload, Phase, Tensors


@dataclass(frozen=True)
class Request:
    """One ask on its way to one client. ``accepted`` is the last round of this client that the server accepted:
    the client keeps the state of that round and discards any later one."""

    run: str
    round: int
    phase: str
    accepted: int
    seed: int
    ask: Payload

    def client_key(self, client_id: str) -> Key:
        return Key(self.seed).fold("client", client_id, self.round, self.phase)


@dataclass(frozen=True)
class Replied:
    payload: Payload


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

    def deliver(
        self, phase: Phase, requests: Mapping[str, Request], *, seconds: float | None, listener: Listener
    ) -> Mapping[str, Delivery]:
        """Deliver within ``seconds``; a client that does not answer in time is ``Silent``."""

    def checkpoint(self) -> Mapping[str, Tensors]:
        """The state of clients that live in this process; empty where clients keep their own."""

    def restore(self, records: Mapping[str, Tensors]) -> None:
        """Take back what ``checkpoint`` gave."""
