"""One round of any method over any transport."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fedaf.errors import BelowQuorum, FedafError, Refused
from fedaf.federation.observer import Observer
from fedaf.protocol import Engine, Failed, Key, Method, Payload, Phase, Replied, Request, ServerState, Transport
from fedaf.protocol.returned import returned


@dataclass(frozen=True)
class RoundRules:
    """What the federation requires of a round.

    Args:
        participation: Fraction of the clients that are asked.
        quorum: Fraction of the asked clients that must reply in every phase.
        deadline: Seconds that a phase may take; ``None`` means no limit.
    """

    participation: float = 1.0
    quorum: float = 0.5
    deadline: float | None = None


@dataclass
class RoundReport:
    """What happened in a round, and what it cost.

    Args:
        asked: Clients that were asked in the first phase.
        accepted: Clients whose replies to all phases were accepted.
        seconds: Time by phase.
        overhead: Time that was not work, by phase, where the transport measures it.
        client_seconds: Time until the reply arrived, by phase and client, where the transport measures it.
        upload: Bytes by phase and client, without the evaluation.
        download: Bytes by phase and client, without the evaluation.
        evaluation: Bytes of the evaluation by direction and client.
        failures: Reason by client, starting with the phase.
        publishable: For each client that replied, whether all its replies allow its condensed images to be published.
    """

    asked: list[str]
    accepted: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    overhead: dict[str, dict[str, float]] = field(default_factory=dict)
    client_seconds: dict[str, dict[str, float]] = field(default_factory=dict)
    upload: dict[str, dict[str, int]] = field(default_factory=dict)
    download: dict[str, dict[str, int]] = field(default_factory=dict)
    evaluation: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    publishable: dict[str, bool] = field(default_factory=dict)


def participants(clients: Sequence[str], participation: float, key: Key) -> list[str]:
    """Draw the clients of a round: a random fraction, at least one, in their usual order."""
    count = max(1, round(participation * len(clients)))
    chosen = set(key.numpy().permutation(len(clients))[:count].tolist())
    return [client for i, client in enumerate(clients) if i in chosen]


def play_round(
    server: ServerState,
    *,
    method: Method,
    transport: Transport,
    clients: Sequence[str],
    accepted: Mapping[str, int],
    run: str,
    rules: RoundRules,
    engine: Engine,
    observer: Observer,
    evaluation: Phase | None = None,
) -> tuple[ServerState, RoundReport]:
    """Play one round: in each phase ask, collect, check and aggregate; then the server's own work; then evaluate.

    Args:
        server: State before the round.
        method: The method.
        transport: Delivers requests to the clients.
        clients: Clients that can be asked.
        accepted: The last accepted round of each client.
        run: Identifies the run to its clients.
        rules: Participation, quorum and deadline.
        engine: Computes the server's own work.
        observer: Receives the events of the run.
        evaluation: Evaluation phase for methods that have none.

    Returns:
        The state after the round, and the report.

    Raises:
        BelowQuorum: Too few clients replied. The caller's state is unchanged.
        FedafError: The model is no longer finite.
    """
    server = server.next_round(len({*clients, *accepted}))  # including clients that are away and may return
    active = participants(clients, rules.participation, server.key.derive("participants", server.round))
    report = RoundReport(active)
    needed = max(1, math.ceil(rules.quorum * len(active) - 1e-9))  # 0.07 of 100 is 7, despite rounding errors
    observer.round_started(server.round)

    def exchange(server: ServerState, phase: Phase, accepted: Mapping[str, int]) -> dict[str, Payload]:
        observer.phase_started(phase.name, len(active))
        requests = {
            client: Request(
                run=run,
                round=server.round,
                phase=phase.name,
                accepted=accepted.get(client, 0),
                key=server.key.derive("client", client, server.round, phase.name),
                ask=phase.ask(server, client),
                seconds=rules.deadline,
            )
            for client in active
        }
        return _collect(phase, requests, transport, report, observer)

    for phase in method.phases:
        started = time.perf_counter()
        replies = exchange(server, phase, accepted)
        active = list(replies)
        if len(active) < needed:
            replied = f"{len(active)} of {len(report.asked)} clients replied, {needed} are needed"
            where, reasons = f"round {server.round}, phase {phase.name}", _by_reason(report.failures)
            raise BelowQuorum(f"{where}: {replied} ({reasons})", code="FEDAF-QUORUM")
        server = returned(phase.aggregate(server, replies), ServerState, f"aggregate of the phase {phase.name}")
        report.seconds[phase.name] = time.perf_counter() - started
    report.accepted = active
    observer.phase_started("server", 0)
    started = time.perf_counter()
    server = returned(method.finish(server, engine), ServerState, "finish of the method")
    report.seconds["server"] = time.perf_counter() - started
    if not all(bool(torch.isfinite(t).all()) for t in server.model.values() if t.is_floating_point()):
        what = f"round {server.round}: the server's model is no longer finite; lower its learning rate."
        raise FedafError(what, code="FEDAF-MODEL-NOT-FINITE")
    evaluation = method.evaluation or evaluation
    if evaluation is not None:
        started = time.perf_counter()
        replies = exchange(server, evaluation, dict.fromkeys(active, server.round))
        server = evaluation.aggregate(server, replies) if replies else server
        name = evaluation.name
        report.evaluation = {"upload": report.upload.pop(name), "download": report.download.pop(name)}
        report.seconds["evaluate"] = time.perf_counter() - started
    return server, report


def _by_reason(failures: Mapping[str, str]) -> str:
    clients: dict[str, list[str]] = {}
    for client, reason in failures.items():
        clients.setdefault(reason, []).append(client)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in clients.items())


def _collect(
    phase: Phase, requests: Mapping[str, Request], transport: Transport, report: RoundReport, observer: Observer
) -> dict[str, Payload]:
    """Return the valid replies; every other delivery becomes a failure in the report."""
    round = next(iter(requests.values())).round
    report.download[phase.name] = {client: request.ask.nbytes for client, request in requests.items()}
    deliveries = transport.deliver(phase, requests, observer.progressed)
    replies: dict[str, Payload] = {}
    seconds: dict[str, Mapping[str, float]] = {}
    for client, request in requests.items():
        delivery = deliveries[client]
        try:
            if isinstance(delivery, Replied):
                phase.schema(request.ask).validate(delivery.payload)
        except Refused as refusal:
            delivery = Failed.from_error(refusal)
        if not isinstance(delivery, Replied):
            report.failures[client] = f"{phase.name}: {delivery.reason}"
            observer.client_failed(round, phase.name, client, delivery.reason)
            continue
        replies[client] = delivery.payload
        report.publishable[client] = delivery.publishable and report.publishable.get(client, True)
        if delivery.seconds:
            seconds[client] = delivery.seconds
    if seconds:
        report.overhead[phase.name] = _overhead(list(seconds.values()))
        report.client_seconds[phase.name] = {client: parts["elapsed"] for client, parts in seconds.items()}
    report.upload[phase.name] = {client: reply.nbytes for client, reply in replies.items()}
    return replies


def _overhead(seconds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean time per client that was not work: in total, and the parts that clients report."""
    total = sum(one["elapsed"] - one["work"] for one in seconds)
    parts = {name: sum(one[name] for one in seconds) / len(seconds) for name in ("import", "data", "model")}
    return {"all": total / len(seconds), **parts}
