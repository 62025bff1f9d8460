"""The client's side of a phase, the same in one process and on a machine of its own."""

from collections.abc import Iterator, Mapping

from fedaf.federation.client_state import ClientState
from fedaf.federation.transport import Request
from fedaf.protocol import Client, Engine, Payload, Phase, Shard, to_cpu


def serve(
    phase: Phase,
    requests: Mapping[str, Request],
    shards: Mapping[str, Shard],
    states: Mapping[str, ClientState],
    engine: Engine,
) -> Iterator[tuple[str, Payload, ClientState]]:
    """Answer requests of one phase for the clients that are here, one or a cohort, in their order: for each its
    reply, and the state to keep for its next request."""
    opened = {name: states.get(name, ClientState()).opened(request) for name, request in requests.items()}
    clients = [
        Client(name, shards[name], requests[name].key, state.committed, state.scratch) for name, state in opened.items()
    ]
    outcomes = phase.work([request.ask for request in requests.values()], clients, engine)
    for name, outcome in zip(requests, outcomes, strict=True):
        reply = Payload(to_cpu(outcome.reply.tensors), outcome.reply.scalars)
        yield name, reply, opened[name].after(requests[name], outcome)
