"""Flower's grid without a network: the real app of a client answers each message at once, in this process."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedaf.runs.network import client_site
from fedaf.transports.flower.client import client_app

# As a process of Flower's has it, without which no message can be made.
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


class DirectGrid:
    """Nodes by number, with their node configs; ``online`` are those that are there. ``spoil`` may change what a node
    answers, or drop it."""

    def __init__(self, config: str, nodes: Mapping[int, Mapping[str, str | int]]) -> None:
        self.config, self.nodes = config, dict(nodes)
        self.online = set(nodes)
        self.spoil: Callable[[Message, RecordDict], RecordDict | Error | None] = lambda message, records: records
        self._app = client_app(client_site)
        self._replies: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        return [self._push(message) for message in messages]

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self._replies.pop(number) for number in ids if number in self._replies]

    def answer(self, message: Message) -> RecordDict:
        """What the node of a message replies to it."""
        node = message.metadata.dst_node_id
        context = Context(1, node, dict(self.nodes[node]), RecordDict(), {"config": self.config})
        return self._app(message, context).content

    def _push(self, message: Message) -> str:
        number = message.object_id
        message.metadata.__dict__["_message_id"] = number
        records = self.spoil(message, self.answer(message))
        if records is not None:
            self._replies[number] = Message(records, reply_to=message)
        return number


def node(folder: Path, number: int, **config: str | int) -> dict[str, str | int]:
    """The config of the node of one client of the run's own split."""
    name = f"client-{number}"
    given = {key.replace("_", "-"): value for key, value in config.items()}
    return {"client-id": name, "data": f"partition:{number}", "state-dir": str(folder / name), **given}
