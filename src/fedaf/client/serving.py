"""Serving the requests of one phase, the same in one process and on a client's own machine."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fedaf.client.evaluation import Evaluate
from fedaf.client.state import ClientState
from fedaf.engine import EagerEngine
from fedaf.errors import Refused
from fedaf.protocol import Client, Engine, Method, Outcome, Payload, Phase, Policy, Shard, Vault, to_cpu
from fedaf.protocol.messages import Delivery, Failed, Replied, Request
from fedaf.protocol.returned import returned


@dataclass(frozen=True)
class Admission:
    """Decides whether a client takes part in a phase.

    Args:
        policy: The client's policy.
        method: The method that the server runs.
        method_name: The name under which the policy lists it.
    """

    policy: Policy
    method: Method
    method_name: str

    def admit(self, phase: Phase, shard: Shard, state: ClientState) -> Mapping[int, int] | None:
        """Check a phase before any work is done.

        Returns:
            The condensed images that are permitted in this round, by class; ``None`` if the method does not say what it
            discloses, for an evaluation, which uses test data only, and with differential privacy, because images are
            then post-processing of a release.

        Raises:
            Refused: The method would reveal more than the policy allows.
        """
        counts, private = shard.counts, self.method.privacy is not None
        disclosure = None if isinstance(phase, Evaluate) and not private else self.method.discloses(counts)
        self.policy.admit(self.method_name, disclosure)
        return (
            None
            if disclosure is None or private
            else self.policy.allowance(disclosure.images, counts, state.images_sent)
        )


def serve(
    phase: Phase,
    requests: Mapping[str, Request],
    shards: Mapping[str, Shard],
    states: Mapping[str, ClientState],
    engine: Engine,
    admission: Admission | None = None,
    vault: Callable[[str, Request], Vault] | None = None,
) -> Iterator[tuple[str, Delivery, ClientState]]:
    """Serve the requests of one phase for one client or a whole cohort.

    Args:
        phase: The phase of all requests.
        requests: One request per client.
        shards: The data of these clients.
        states: The state that each client has kept; a new client has none.
        engine: Computes.
        admission: The clients' policy, if they have one. What it refuses is not computed, or not sent.
        vault: Returns a client's vault for a request, in runs with differential privacy.

    Yields:
        For each client its name, its reply or refusal, and the state to keep for its next request.
    """
    clients: list[Client] = []
    opened: dict[str, ClientState] = {}
    for name, request in requests.items():
        shard, state = shards[name], states.get(name, ClientState()).opened(request)
        try:
            allowance = None if admission is None else admission.admit(phase, shard, state)
        except Refused as refusal:
            yield name, Failed.from_error(refusal), state
            continue
        opened[name] = state
        kept = state.current(request), state.scratch
        own = None if vault is None else vault(name, request)
        clients.append(Client(name, shard, request.key, *kept, state.images_sent, allowance, own))
    if not clients:
        return
    outcomes = phase.work([requests[client.id].ask for client in clients], clients, engine)
    for client, found in zip(clients, outcomes, strict=True):
        outcome = returned(found, Outcome, f"work_one of the phase {phase.name}")
        state, reply = opened[client.id], Payload(to_cpu(outcome.reply.tensors), outcome.reply.scalars)
        try:
            if admission is not None:
                admission.policy.release(reply, outcome.images, client.allowance)
        except Refused as refusal:
            yield client.id, Failed.from_error(refusal), state
            continue
        publishable = admission is None or admission.policy.allow_publication
        yield client.id, Replied(reply, publishable=publishable), state.after(requests[client.id], outcome)


@dataclass(frozen=True)
class ClientSite:
    """Everything that a client on its own machine needs to serve requests.

    Args:
        shard: Its data.
        method: The method of the run.
        engine: Computes.
        admission: Applies the client's policy.
        seconds: How long it took to load the ``data`` and to build the ``model``.
    """

    shard: Shard
    method: Method
    engine: EagerEngine
    admission: Admission
    seconds: Mapping[str, float] = field(default_factory=dict)
