"""The client's side of a phase, the same in one process and on a machine of its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fedaf.client.evaluation import Evaluate
from fedaf.client.state import ClientState
from fedaf.engine import EagerEngine
from fedaf.protocol import Client, Engine, Method, Payload, Phase, Policy, Refused, Shard, to_cpu
from fedaf.protocol.transport import Delivery, Failed, Replied, Request


@dataclass(frozen=True)
class Admission:
    """A client's policy, applied to the method that a server runs."""

    policy: Policy
    method: Method
    method_name: str

    def admit(self, phase: Phase, shard: Shard, state: ClientState) -> None:
        """Raise ``Refused`` before any work where the method takes more than the policy gives. An evaluation takes
        nothing of the data a client trains on."""
        counts = shard.counts
        taken = None if isinstance(phase, Evaluate) else self.method.discloses(counts)
        self.policy.admit(self.method_name, taken, counts, sent=state.images_sent)


def serve(
    phase: Phase,
    requests: Mapping[str, Request],
    shards: Mapping[str, Shard],
    states: Mapping[str, ClientState],
    engine: Engine,
    admission: Admission | None = None,
) -> Iterator[tuple[str, Delivery, ClientState]]:
    """Answer requests of one phase for the clients that are here, one or a cohort: for each its reply or its refusal,
    and the state to keep for its next request. What a client's policy refuses is not computed, or not sent."""
    clients: list[Client] = []
    opened: dict[str, ClientState] = {}
    for name, request in requests.items():
        shard, state = shards[name], states.get(name, ClientState()).opened(request)
        try:
            if admission is not None:
                admission.admit(phase, shard, state)
        except Refused as refusal:
            yield name, Failed(str(refusal)), state
            continue
        opened[name] = state
        clients.append(Client(name, shard, request.key, state.current(request), state.scratch))
    if not clients:
        return
    outcomes = phase.work([requests[client.id].ask for client in clients], clients, engine)
    for client, outcome in zip(clients, outcomes, strict=True):
        state, reply = opened[client.id], Payload(to_cpu(outcome.reply.tensors), outcome.reply.scalars)
        try:
            if admission is not None:
                admission.policy.release(reply)
        except Refused as refusal:
            yield client.id, Failed(str(refusal)), state
            continue
        yield client.id, Replied(reply), state.after(requests[client.id], outcome)


@dataclass(frozen=True)
class Site:
    """One client on a machine of its own; ``seconds`` says how long its ``data`` and its ``model`` took."""

    shard: Shard
    method: Method
    engine: EagerEngine
    admission: Admission
    seconds: Mapping[str, float] = field(default_factory=dict)
