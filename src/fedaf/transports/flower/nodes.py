"""Which client runs on which node. Flower numbers nodes as they connect; each new node is asked for its client id."""

import logging
import time
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from fedaf.errors import Refused
from fedaf.transports.flower.node import is_client_id
from fedaf.transports.flower.wire import HELLO, from_records, to_records

log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds that a round waits for a connected node to identify itself
_AGAIN = 60.0  # seconds until a refused node is asked again: its owner may have fixed its config
_TIME_TO_LIVE = 3600.0


class _Place(NamedTuple):
    """The node of a client; ``identity`` is a token on the client's disk."""

    node: int
    identity: str


class Nodes:
    """The nodes of a grid and their clients. Nodes may connect and disconnect at any time."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._places: dict[str, _Place] = {}
        self._greeted: dict[int, float] = {}  # time by node
        self._refused: dict[int, float] = {}  # time by node
        self._waiting: dict[str, int] = {}  # node by message id

    def clients(self) -> list[str]:
        """Return the clients whose nodes are connected and have identified themselves."""
        online, now = set(self._grid.get_node_ids()), time.monotonic()
        self._greeted = {node: when for node, when in self._greeted.items() if node in online}
        for node in online - self._greeted.keys():
            if now > self._refused.get(node, -_AGAIN) + _AGAIN:
                self._greet(node)
        if self._waiting:
            for reply in self._grid.pull_messages(list(self._waiting)):
                node = self._waiting.pop(reply.metadata.reply_to_message_id)
                self._meet(node, reply)
        self._waiting = {message: node for message, node in self._waiting.items() if node in online}
        return [client for client, place in self._places.items() if place.node in online]

    def expecting(self) -> bool:
        """Return whether a new node may still identify itself soon."""
        now, new = time.monotonic(), [node for node in self._waiting.values() if node not in self._refused]
        return any(now < self._greeted[node] + _PATIENCE for node in new)

    def node_of(self, client: str) -> int:
        """Return Flower's number of a client's node."""
        return self._places[client].node

    def _greet(self, node: int) -> None:
        sent = list(self._grid.push_messages([Message(to_records(), node, HELLO, ttl=_TIME_TO_LIVE)]))
        if sent and sent[0]:
            self._greeted[node] = time.monotonic()
            self._waiting[sent[0]] = node

    def _meet(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise Refused(flower_error(reply), code="FEDAF-CLIENT-GONE")
            facts, _ = from_records(reply.content, sender=f"node {node}")
            if "failure" in facts:
                raise Refused(str(facts["failure"])[:400], code="FEDAF-NODE-FAILED")
            client, identity = str(facts.get("client", "")), str(facts.get("identity", ""))[:64]
            self._admit(client, _Place(node, identity))
        except Refused as refusal:
            log.warning("node %d does not take part: %s", node, refusal.labelled)
            self._greeted.pop(node, None)  # it may have disconnected since
            self._refused[node] = time.monotonic()
            return
        self._refused.pop(node, None)
        log.info("client %s is node %d", client, node)

    def _admit(self, client: str, place: _Place) -> None:
        """Assign a client id to a node.

        In a run, a client id belongs to the first node that used it, even while that node is disconnected. A node with
        the same identity is that node reconnecting, and replaces it.
        """
        if not is_client_id(client):
            raise Refused(f"{client!r:.80} is not a valid client-id", code="FEDAF-NODE-CLIENT-ID")
        before = self._places.get(client)
        if before and before.identity != place.identity:
            what = f"the client-id {client!r} belongs to node {before.node}, which has another state-dir"
            raise Refused(f"{what}; use another client-id", code="FEDAF-NODE-CLIENT-ID")
        self._places[client] = place


def flower_error(reply: Message) -> str:
    """Return the error that Flower sent in place of a reply, in one sentence."""
    return f"Flower error {reply.error.code}: {(reply.error.reason or 'no reason given')[:200]}"
