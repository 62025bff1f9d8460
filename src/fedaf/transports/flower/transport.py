"""A transport over Flower's grid. Each client is one node."""

import logging
import math
import time
from collections.abc import Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedaf.errors import BelowQuorum, Refused
from fedaf.protocol import Delivery, Failed, Listener, Payload, Phase, Replied, Request, Silent, Tensors
from fedaf.transports.flower.nodes import Nodes, flower_error
from fedaf.transports.flower.wire import PHASE, Fact, from_records, to_records

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2
_PARTS = ("import", "data", "model", "work")


class FlowerTransport:
    """A transport whose clients are Flower nodes.

    Args:
        grid: Flower's connection to the nodes.
        min_clients: A round starts when this many clients are connected.
        wait: Seconds to wait for them.
    """

    def __init__(self, grid: Grid, *, min_clients: int, wait: float) -> None:
        self._grid, self._min_clients, self._wait = grid, min_clients, wait
        self._nodes = Nodes(grid)

    def clients(self) -> Sequence[str]:
        give_up = time.monotonic() + self._wait
        logged = 0.0
        while True:
            here = self._nodes.clients()
            if len(here) >= self._min_clients and not self._nodes.expecting():
                return sorted(here)
            if time.monotonic() > give_up:
                what = f"{len(here)} clients connected within {self._wait:g} s ({', '.join(sorted(here)) or 'none'})"
                expected = f"federation.min_clients is {self._min_clients}"
                raise BelowQuorum(f"{what}, but {expected}", code="FEDAF-QUORUM-CLIENTS")
            if time.monotonic() > logged + 30:
                logged = time.monotonic()
                log.info("%d clients are connected, waiting for %d", len(here), self._min_clients)
            time.sleep(_POLL_SECONDS)

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        started = time.monotonic()
        deadline = started + min((r.seconds for r in requests.values() if r.seconds is not None), default=math.inf)
        deliveries: dict[str, Delivery] = {}
        waiting: dict[str, str] = {}  # client by message id
        for client, request in requests.items():
            sent = self._send(client, request)
            if sent is None:
                deliveries[client] = Failed("the request could not be sent: the node is gone [FEDAF-CLIENT-GONE]")
            else:
                waiting[sent] = client
        while waiting and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(waiting)):
                # Not by sender: Flower itself replies for a node that is gone.
                client = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error() and time.monotonic() >= deadline:
                    continue  # Flower reports a request that expired meanwhile as an error
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
        """Send a request and return its message id. It expires at the deadline, so no node works on it in vain."""
        node = self._nodes.node_of(client)
        message = Message(to_records(request.encode(), client=client), node, PHASE, ttl=request.seconds)
        sent = list(self._grid.push_messages([message]))
        return sent[0] if sent and sent[0] else None


def _delivery(phase: Phase, request: Request, reply: Message, client: str, elapsed: float) -> Delivery:
    if reply.has_error():
        return Failed(f"{flower_error(reply)} [FEDAF-CLIENT-GONE]")
    try:
        facts, data = from_records(reply.content, sender=client)
        if "failure" in facts:
            return Failed(str(facts["failure"])[:400])
        if (facts.get("run"), facts.get("round"), facts.get("phase")) != (request.run, request.round, request.phase):
            raise Refused("the reply is to another round or phase", code="FEDAF-REPLY-STALE")
        payload = Payload.decode(data, max_bytes=phase.schema(request.ask).max_bytes)
    except Refused as refusal:
        return Failed.from_error(refusal)
    seconds = {"elapsed": elapsed, **{part: _seconds(facts.get(part), elapsed) for part in _PARTS}}
    return Replied(payload, seconds, publishable=facts.get("publishable") is True)


def _seconds(reported: Fact | None, elapsed: float) -> float:
    """Return the seconds that a client reports, limited to the time that really passed."""
    return min(max(reported, 0.0), elapsed) if isinstance(reported, float) and math.isfinite(reported) else 0.0
