"""Carries phases over Flower's grid, each client being a node of it."""

import math
import time
from collections.abc import Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from wire import PHASE, from_records, to_records

from fedaf.federation.transport import Delivery, Failed, Listener, Replied, Request, Silent
from fedaf.protocol import FedafError, Payload, Phase, Refused, Tensors

_POLL_SECONDS = 0.2


class FlowerTransport:
    """Implements ``fedaf.federation.transport.Transport``. ``nodes`` says which node each client is."""

    def __init__(self, grid: Grid, nodes: Mapping[str, int]) -> None:
        self._grid, self._nodes = grid, nodes

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        seconds = min((r.seconds for r in requests.values() if r.seconds is not None), default=math.inf)
        deadline = time.monotonic() + seconds
        deliveries: dict[str, Delivery] = {}
        waiting: dict[str, str] = {}  # who is to reply to which message
        for client, request in requests.items():
            message = Message(to_records(request.encode()), self._nodes[client], PHASE, ttl=request.seconds)
            sent = list(self._grid.push_messages([message]))
            if sent and sent[0]:
                waiting[sent[0]] = client
            else:
                deliveries[client] = Failed("the request could not be sent")
        while waiting and time.monotonic() < deadline:
            for reply in self._grid.pull_messages(list(waiting)):
                # Not by sender: in place of a node that is gone, Flower itself replies.
                client = waiting.pop(reply.metadata.reply_to_message_id)
                deliveries[client] = _delivery(phase, requests[client], reply)
                listener(client, len(deliveries), len(requests))
            time.sleep(_POLL_SECONDS if waiting else 0)
        return {client: deliveries.get(client, Silent()) for client in requests}

    def checkpoint(self) -> Mapping[str, Tensors]:
        return {}

    def restore(self, records: Mapping[str, Tensors]) -> None:
        return None


def meet(grid: Grid, clients: Sequence[str], *, seconds: float) -> dict[str, int]:
    """Wait for a node for every client, asking each node that comes which one it is."""
    deadline = time.monotonic() + seconds
    nodes: dict[str, int] = {}
    greeted: set[int] = set()
    waiting: set[str] = set()
    while len(nodes) < len(clients):
        if time.monotonic() > deadline:
            raise FedafError(f"after {seconds:g} s only {len(nodes)} of {len(clients)} clients are there.")
        for node in set(grid.get_node_ids()) - greeted:
            greeted.add(node)
            waiting.update(grid.push_messages([Message(RecordDict(), node, "query.hello", ttl=seconds)]))
        for reply in grid.pull_messages(list(waiting)):
            waiting.remove(reply.metadata.reply_to_message_id)
            if reply.has_content():
                nodes[clients[int(reply.content["hello"]["partition-id"])]] = reply.metadata.src_node_id
        time.sleep(_POLL_SECONDS)
    return nodes


def _delivery(phase: Phase, request: Request, reply: Message) -> Delivery:
    if reply.has_error():
        return Failed(f"error {reply.error.code}: {(reply.error.reason or 'no reason given')[:200]}")
    try:
        data = from_records(reply.content)
        return Replied(Payload.decode(data, max_bytes=phase.schema(request.ask).max_bytes))
    except Refused as refusal:
        return Failed(str(refusal))
