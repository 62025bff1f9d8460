"""The Flower app of a client on its own machine.

Flower starts a process for each message; between messages the client's state is on its disk. PyTorch is imported only
when a message needs it.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedaf.errors import FedafError, Refused
from fedaf.transports.flower.node import Node
from fedaf.transports.flower.wire import HELLO, PHASE, Fact, from_records, to_records

if TYPE_CHECKING:
    from fedaf.client.serving import ClientSite

log = logging.getLogger(__name__)

#: The ledger of differential privacy, in the folder of a client's state.
LEDGER_FOLDER = "privacy"


def client_app(open_site: Callable[[Node, str], "ClientSite"]) -> ClientApp:
    """Return the app of a node.

    Args:
        open_site: Makes the client from the node's config and the TOML text of the run's configuration.
    """
    app = ClientApp()

    def hello(message: Message, context: Context) -> RecordDict:
        from_records(message.content, sender="the server")
        node = Node.read(context.node_config)
        return to_records(client=node.client, identity=node.identity())

    def phase(message: Message, context: Context) -> RecordDict:
        facts, data = from_records(message.content, sender="the server")
        node = Node.read(context.node_config)
        if facts.get("client") != node.client:
            what = f"the request is for {str(facts.get('client'))[:64]!r}, but this node is {node.client!r}"
            raise Refused(what, code="FEDAF-REQUEST-CLIENT")
        return _work(data, node, str(context.run_config.get("config", "")), open_site)

    app.query(HELLO.partition(".")[2])(_answering(hello))
    app.train(PHASE.partition(".")[2])(_answering(phase))
    return app


def _answering(answer: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
    """Turn a ``FedafError`` into a reply with its reason. Other errors go to Flower, and to the node's log."""

    def handle(message: Message, context: Context) -> Message:
        try:
            records = answer(message, context)
        except FedafError as error:
            log.error("%s", error.labelled)
            records = to_records(failure=f"{str(error)[:300]} [{error.code}]")
        return Message(records, reply_to=message)

    return handle


def _work(data: bytes, node: Node, config: str, open_site: Callable[[Node, str], "ClientSite"]) -> RecordDict:
    """Serve one request: what ``LocalTransport`` does for all clients, for this client alone."""
    started = time.monotonic()
    from fedaf.client.evaluation import phase_named
    from fedaf.client.left_out import left_out
    from fedaf.client.serving import serve
    from fedaf.client.state_folder import StateFolder
    from fedaf.client.vault import vaults
    from fedaf.privacy.ledger import Ledger
    from fedaf.protocol import Replied, Request

    imported = time.monotonic()
    request = Request.decode(data)
    deadline = started + request.seconds if request.seconds is not None else None
    site = open_site(node, config)
    opened = time.monotonic()
    states = StateFolder(node.folder)
    with states.locked(seconds=request.seconds):
        kept = {node.client: states.read(request.run)}
        phase, engine = phase_named(site.method, request.phase), site.engine.until(deadline)
        shards = {node.client: site.shard}
        if request.round == 1 and request.phase == site.method.phases[0].name:  # a process serves one request only
            omitted = left_out(site.method, {node.client: site.shard.counts}, site.admission)
            if omitted is not None and (sentence := omitted.sentence(site.admission.method_name)):
                log.info("%s", sentence)
        ledger = Ledger(node.folder / LEDGER_FOLDER)
        vault = vaults(site.method, lambda _: ledger, site.admission.policy)
        _, delivery, state = next(serve(phase, {node.client: request}, shards, kept, engine, site.admission, vault))
        states.write(state)  # before the reply, so that what was sent is always counted
    if not isinstance(delivery, Replied):
        return to_records(failure=delivery.reason)
    seconds = {"import": imported - started, **site.seconds, "work": time.monotonic() - opened}
    facts: dict[str, Fact] = {"run": request.run, "round": request.round, "phase": request.phase, **seconds}
    return to_records(delivery.payload.encode(), **facts, publishable=delivery.publishable)
