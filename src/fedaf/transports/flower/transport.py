"""Carries phases over Flower's grid, each client being a node of it."""

import logging
import math
import time
from collections.abc import Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedaf.protocol import BelowQuorum, Payload, Phase, Refused, Tensors
from fedaf.protocol.transport import Delivery, Failed, Listener, Replied, Request, Silent
from fedaf.transports.flower.registry import Registry
from fedaf.transports.flower.wire import PHASE, Fact, from_records, to_records

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_PARTS = ("import", "data", "model", "work")


class FlowerTransport:
    """Implements ``fedaf.protocol.transport.Transport``. A round begins when ``min_clients`` are there, for which it
    waits as many seconds as ``wait`` says."""

    def __init__(self, grid: Grid, *, min_clients: int, wait: float) -> None:
        self._grid, self._min_clients, self._wait = grid, min_clients, wait
        self._registry = Registry(grid)

    def clients(self) -> Sequence[str]:
        give_up = time.monotonic() + self._wait
        said = 0.0
        while True:
            here = self._registry.clients()
            if len(here) >= self._min_clients and not self._registry.expecting():
                return sorted(here)
            if time.monotonic() > give_up:
                raise BelowQuorum(
                    f"after {self._wait:g} s {len(here)} clients are there ({', '.join(sorted(here)) or 'none'}), "
                    f"federation.min_clients is {self._min_clients}"
                )
            if time.monotonic() > said + 30:
                said = time.monotonic()
                log.info("%d clients are there, waiting for %d", len(here), self._min_clients)
            time.sleep(_POLL_SECONDS)

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        started = time.monotonic()
        deadline = started + min((r.seconds for r in requests.values() if r.seconds is not None), default=math.inf)
        deliveries: dict[str, Delivery] = {}
        waiting: dict[str, str] = {}  # who is to reply to which message
        for client, request in requests.items():
            sent = self._send(client, request)
            if sent is None:
                deliveries[client] = Failed("the request could not be sent: the node is gone")
            else:
                waiting[sent] = client
        while waiting and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(waiting)):
                # Not by sender: in place of a node that is gone, Flower itself replies.
                client = waiting.pop(reply.metadata.reply_to_message_id)
                elapsed = time.monotonic() - started
                deliveries[client] = _delivery(phase, requests[client], reply, client, elapsed)
                listener(client, len(deliveries), len(requests))
            if waiting:
                time.sleep(_POLL_SECONDS)
        return {client: deliveries.get(client, Silent()) for client in requests}

    def checkpoint(self) -> Mapping[str, Tensors]:
        return {}

    def restore(self, records: Mapping[str, Tensors]) -> None:
        return None

    def _send(self, client: str, request: Request) -> str | None:
        """The id of the message on its way. Its time to live is the deadline: no node begins what nobody awaits."""
        node = self._registry.node_of(client)
        message = Message(to_records(request.encode(), client=client), node, PHASE, ttl=request.seconds)
        sent = list(self._grid.push_messages([message]))
        return sent[0] if sent and sent[0] else None


def _delivery(phase: Phase, request: Request, reply: Message, client: str, elapsed: float) -> Delivery:
    if reply.has_error():
        return Failed(f"Flower's error {reply.error.code}: {(reply.error.reason or 'no reason given')[:200]}")
    try:
        facts, data = from_records(reply.content, sender=client)
        if "failure" in facts:
            return Failed(str(facts["failure"])[:300])
        if (facts.get("run"), facts.get("round"), facts.get("phase")) != (request.run, request.round, request.phase):
            raise Refused("a reply to another round was dropped")
        payload = Payload.decode(data, max_bytes=phase.schema(request.ask).max_bytes)
    except Refused as refusal:
        return Failed(str(refusal))
    return Replied(payload, {"elapsed": elapsed, **{part: _seconds(facts.get(part), elapsed) for part in _PARTS}})


def _seconds(told: Fact | None, elapsed: float) -> float:
    """What a client says it took, as far as that can be."""
    return min(max(told, 0.0), elapsed) if isinstance(told, float) and math.isfinite(told) else 0.0
