"""Which client is at which node. Flower numbers nodes as they come; every one is asked once who it is."""

import logging
import time
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedaf.errors import Refused
from fedaf.transports.flower.node import is_client_id
from fedaf.transports.flower.wire import HELLO, from_records, to_records

log = logging.getLogger(__name__)

_PATIENCE = 30.0  # seconds that a round waits for a node that is there to say who it is
_AGAIN = 60.0  # seconds after which a node that was refused is asked again: its owner may have mended it
_TIME_TO_LIVE = 3600.0


@dataclass(frozen=True)
class _Place:
    """Where a client is; ``identity`` is a token on its disk."""

    node: int
    identity: str


class Registry:
    """Looks at the grid whenever it is asked; nodes may come and go at any time."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._places: dict[str, _Place] = {}
        self._greeted: dict[int, float] = {}  # when
        self._refused: dict[int, float] = {}  # when
        self._waiting: dict[str, int] = {}  # which node is to reply to which message

    def clients(self) -> list[str]:
        """Who is there and has said who it is."""
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
        """Whether a new node is there that may still say who it is."""
        now, new = time.monotonic(), [node for node in self._waiting.values() if node not in self._refused]
        return any(now < self._greeted[node] + _PATIENCE for node in new)

    def node_of(self, client: str) -> int:
        return self._places[client].node

    def _greet(self, node: int) -> None:
        sent = list(self._grid.push_messages([Message(to_records(), node, HELLO, ttl=_TIME_TO_LIVE)]))
        if sent and sent[0]:
            self._greeted[node] = time.monotonic()
            self._waiting[sent[0]] = node

    def _meet(self, node: int, reply: Message) -> None:
        try:
            if reply.has_error():
                raise Refused(f"Flower's error {reply.error.code}: {(reply.error.reason or 'no reason given')[:200]}")
            facts, _ = from_records(reply.content, sender=f"node {node}")
            if "failure" in facts:
                raise Refused(str(facts["failure"])[:300])
            client, identity = str(facts.get("client", "")), str(facts.get("identity", ""))[:64]
            self._admit(client, _Place(node, identity))
        except Refused as refusal:
            log.warning("node %d does not take part: %s", node, refusal)
            self._greeted.pop(node, None)  # it may have left since
            self._refused[node] = time.monotonic()
            return
        self._refused.pop(node, None)
        log.info("%s is at node %d", client, node)

    def _admit(self, client: str, place: _Place) -> None:
        """A name belongs to who first had it in this run, also while that one is away. A node that came back takes its
        place, even while its former self seems to be there still."""
        if not is_client_id(client):
            raise Refused(f"its client-id is {client!r:.80}")
        before = self._places.get(client)
        if before and before.identity != place.identity:
            theirs = f"the client-id {client!r} belongs to node {before.node}, which has another state-dir"
            raise Refused(f"{theirs}; give it one of its own")
        self._places[client] = place
