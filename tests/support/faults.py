"""Ways for one client to fail: in its own work, on the wire, or by not being there at all."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedaf.protocol import (
    Client,
    Delivery,
    Engine,
    Failed,
    Listener,
    Method,
    Outcome,
    Payload,
    Phase,
    Refused,
    Replied,
    Request,
    Schema,
    ServerState,
    Silent,
    Tensors,
    Transport,
)
from fedaf.transports.local import LocalTransport

#: From (client, request, what the client really delivered) to what the server gets.
Fault = Callable[[str, Request, Delivery], Delivery]

#: A request as a wire knows it: whose, of which round and phase.
Tag = tuple[str, int, str]


class FaultyTransport:
    """Everything is carried out by ``inner``; then the fault has its way with the answers."""

    def __init__(self, inner: Transport, fault: Fault) -> None:
        self._inner, self._fault = inner, fault

    def clients(self) -> Sequence[str]:
        return self._inner.clients()

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        deliveries = self._inner.deliver(phase, requests, listener)
        return {client: self._fault(client, requests[client], d) for client, d in deliveries.items()}

    def checkpoint(self) -> Mapping[str, Tensors]:
        return self._inner.checkpoint()

    def restore(self, records: Mapping[str, Tensors]) -> None:
        self._inner.restore(records)


@dataclass(frozen=True)
class Damage:
    """What happens to the reply to one request: it is changed on the wire, dropped (``None``), or comes when the
    server no longer waits for it (``late``)."""

    at: Tag
    late: bool = False
    change: Callable[[bytes], bytes | None] = lambda data: data


class Wire:
    """Clients as over a network: each a cohort of its own that keeps its own state, every message as bytes, every
    reply marked with the request it answers. ``inner`` is what would be on their disks."""

    def __init__(self, inner: LocalTransport, damage: Damage | None = None) -> None:
        self.inner, self._damage = inner, damage
        self._held: dict[Tag, bytes | Failed] = {}

    def clients(self) -> Sequence[str]:
        return self.inner.clients()

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        arrived = dict(self._held)
        for client, request in requests.items():
            asked = Request.decode(request.encode())
            tag = (client, asked.round, asked.phase)
            damage = self._damage if self._damage and self._damage.at == tag else Damage(tag)
            delivery = self.inner.deliver(phase, {client: asked}, listener)[client]
            answer = damage.change(delivery.payload.encode()) if isinstance(delivery, Replied) else delivery
            if answer is not None and not isinstance(answer, Silent):
                (self._held if damage.late else arrived)[tag] = answer
        return {
            client: _opened(arrived.get((client, request.round, request.phase)), phase.schema(request.ask))
            for client, request in requests.items()
        }

    def checkpoint(self) -> Mapping[str, Tensors]:
        return {}

    def restore(self, records: Mapping[str, Tensors]) -> None:
        return None


def _opened(answer: bytes | Failed | None, schema: Schema) -> Delivery:
    if answer is None:
        return Silent()
    if isinstance(answer, Failed):
        return answer
    try:
        return Replied(Payload.decode(answer, max_bytes=schema.max_bytes))
    except Refused as refusal:
        return Failed.from_error(refusal)


class Unreached:
    """One request never gets to its client, so that the client does not know of it."""

    def __init__(self, inner: Transport, at: Tag) -> None:
        self._inner, self._at = inner, at

    def clients(self) -> Sequence[str]:
        return self._inner.clients()

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        sent = {client: r for client, r in requests.items() if (client, r.round, r.phase) != self._at}
        deliveries = self._inner.deliver(phase, sent, listener)
        return {client: deliveries.get(client, Silent()) for client in requests}

    def checkpoint(self) -> Mapping[str, Tensors]:
        return self._inner.checkpoint()

    def restore(self, records: Mapping[str, Tensors]) -> None:
        self._inner.restore(records)


class Recording:
    """Keeps the bytes of every reply that arrived, by request."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.replies: dict[Tag, bytes] = {}

    def clients(self) -> Sequence[str]:
        return self._inner.clients()

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        deliveries = self._inner.deliver(phase, requests, listener)
        for client, delivery in deliveries.items():
            if isinstance(delivery, Replied):
                self.replies[client, requests[client].round, phase.name] = delivery.payload.encode()
        return deliveries

    def checkpoint(self) -> Mapping[str, Tensors]:
        return self._inner.checkpoint()

    def restore(self, records: Mapping[str, Tensors]) -> None:
        self._inner.restore(records)


@dataclass(frozen=True)
class Illness:
    """What happens inside the work of one client, in the one phase ``at``: before it, or to its outcome."""

    at: Tag
    before: Callable[[Engine], None] = lambda engine: None
    to_outcome: Callable[[Outcome], Outcome] = lambda outcome: outcome


class _IllPhase(Phase):
    def __init__(self, inner: Phase, illness: Illness) -> None:
        self._inner, self._illness = inner, illness
        self.name = inner.name
        self._patient = ""

    def ask(self, server: ServerState, client_id: str) -> Payload:
        patient, round, _ = self._illness.at
        self._patient = patient if server.round == round else ""
        return self._inner.ask(server, client_id)

    def schema(self, ask: Payload) -> Schema:
        return self._inner.schema(ask)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return next(self.work([ask], [client], engine))

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        if self._patient in [client.id for client in clients]:
            self._illness.before(engine)
        for client, outcome in zip(clients, self._inner.work(asks, clients, engine), strict=True):
            yield self._illness.to_outcome(outcome) if client.id == self._patient else outcome

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        return self._inner.aggregate(server, replies)


def afflicted(method: Method, illness: Illness) -> Method:
    """The same method, but for what the illness does to one client's work."""

    class Afflicted(type(method)):
        @property
        def phases(self) -> tuple[Phase, ...]:
            return tuple(_IllPhase(p, illness) if p.name == illness.at[2] else p for p in super().phases)

    return Afflicted(method.options, method.task, method.architecture)
