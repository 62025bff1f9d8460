"""One round of any method over any transport."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fedaf.federation.observer import Observer
from fedaf.protocol import BelowQuorum, Engine, FedafError, Key, Method, Payload, Phase, Refused, ServerState
from fedaf.protocol.transport import Replied, Request, Transport


@dataclass(frozen=True)
class RoundRules:
    """What the federation demands of a round."""

    participation: float = 1.0
    quorum: float = 0.5
    deadline: float | None = None


@dataclass
class RoundReport:
    """What a round cost: seconds by phase, and of them those that were no work (where a transport tells); bytes by
    phase and client, those of evaluation apart; who was asked, whose round counts, who failed and why."""

    asked: list[str]
    accepted: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    overhead: dict[str, dict[str, float]] = field(default_factory=dict)
    upload: dict[str, dict[str, int]] = field(default_factory=dict)
    download: dict[str, dict[str, int]] = field(default_factory=dict)
    evaluation: dict[str, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def participants(clients: Sequence[str], participation: float, key: Key) -> list[str]:
    """The clients of a round: a random share of all, at least one, in their usual order."""
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
    terms: RoundRules,
    engine: Engine,
    observer: Observer,
    evaluation: Phase | None = None,
) -> tuple[ServerState, RoundReport]:
    """Ask, collect, check and fold for each phase, then let the server finish; ``evaluation`` comes last, for methods
    that have none of their own. Raises ``BelowQuorum`` where too few clients are left; the caller's state is untouched
    then."""
    server = server.next_round(len({*clients, *accepted}))  # with those who were here before and may come back
    active = participants(clients, terms.participation, server.key.derive("participants", server.round))
    report = RoundReport(active)
    needed = max(1, math.ceil(terms.quorum * len(active) - 1e-9))  # 0.07 of 100 is 7, whatever floats say
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
                seconds=terms.deadline,
            )
            for client in active
        }
        return _collect(phase, requests, transport, report, observer)

    for phase in method.phases:
        started = time.perf_counter()
        replies = exchange(server, phase, accepted)
        active = list(replies)
        if len(active) < needed:
            raise BelowQuorum(
                f"round {server.round}, phase {phase.name}: {len(active)} of {len(report.asked)} clients answered, "
                f"{needed} are needed ({_by_reason(report.failures)})"
            )
        server = phase.aggregate(server, replies)
        report.seconds[phase.name] = time.perf_counter() - started
    report.accepted = active
    observer.phase_started("server", 0)
    started = time.perf_counter()
    server = method.finish(server, engine)
    report.seconds["server"] = time.perf_counter() - started
    if not all(bool(torch.isfinite(t).all()) for t in server.model.values() if t.is_floating_point()):
        raise FedafError(f"round {server.round}: the server's model is no longer finite; lower its learning rate.")
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
    phase: Phase,
    requests: Mapping[str, Request],
    transport: Transport,
    report: RoundReport,
    observer: Observer,
) -> dict[str, Payload]:
    """The replies that keep to the schema; everything else becomes a reason in the report."""
    round = next(iter(requests.values())).round
    report.download[phase.name] = {client: request.ask.nbytes for client, request in requests.items()}
    deliveries = transport.deliver(phase, requests, observer.progressed)
    replies: dict[str, Payload] = {}
    spent: list[Mapping[str, float]] = []
    for client, request in requests.items():
        delivery = deliveries[client]
        try:
            if not isinstance(delivery, Replied):
                raise Refused(delivery.reason)
            phase.schema(request.ask).validate(delivery.payload)
        except Refused as refusal:
            report.failures[client] = f"{phase.name}: {refusal}"
            observer.client_failed(round, phase.name, client, str(refusal))
            continue
        replies[client] = delivery.payload
        if delivery.seconds:
            spent.append(delivery.seconds)
    if spent:
        report.overhead[phase.name] = _overhead(spent)
    report.upload[phase.name] = {client: reply.nbytes for client, reply in replies.items()}
    return replies


def _overhead(spent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """What a phase took beside work, in the mean of its clients: in all, and the parts of it that clients tell of."""
    everything = sum(one["elapsed"] - one["work"] for one in spent)
    parts = {name: sum(one[name] for one in spent) / len(spent) for name in ("import", "data", "model")}
    return {"all": everything / len(spent), **parts}
