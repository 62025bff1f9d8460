"""A whole run: round after round, each evaluated, logged and checkpointed before the next begins."""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaf.client.evaluation import Evaluate, over_samples
from fedaf.data.dataset import Split
from fedaf.federation import checkpoint
from fedaf.federation.checkpoint import Checkpoint
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundReport, RoundRules, play_round
from fedaf.federation.run_directory import RunDirectory
from fedaf.protocol import BelowQuorum, Engine, Key, Method, ServerState
from fedaf.protocol.transport import Transport
from fedaf.training.evaluate import score


@dataclass(frozen=True)
class Federation:
    """Everything a run needs; ``start`` or ``resume`` gives the state to ``run`` from. Without ``test`` the clients
    evaluate the model, on test data of their own."""

    method: Method
    transport: Transport
    test: Split | None
    domains: Sequence[str]
    engine: Engine
    directory: RunDirectory
    terms: RoundRules
    rounds: int
    keep_checkpoints: int = 2

    def start(self, key: Key) -> Checkpoint:
        """The state before round 1, checkpointed."""
        begun = Checkpoint(uuid.uuid4().hex, self.method.initial(key), {}, self.transport.checkpoint())
        checkpoint.save(self.directory.path, begun, keep=self.keep_checkpoints)
        return begun

    def resume(self) -> Checkpoint:
        """The state after the last checkpointed round."""
        found = checkpoint.load(self.directory.path, self.method.Memory)
        self.transport.restore(found.clients)
        self.directory.rewind_metrics(found.server.round)
        return found

    def run(self, begun: Checkpoint, observer: Observer) -> ServerState:
        """Play all rounds that are left."""
        server, accepted = begun.server, dict(begun.accepted)
        evaluation = Evaluate(self.method) if self.test is None else None
        while server.round < self.rounds:
            try:
                server, report = play_round(
                    server,
                    method=self.method,
                    transport=self.transport,
                    clients=self.transport.clients(),
                    accepted=accepted,
                    run=begun.run,
                    terms=self.terms,
                    engine=self.engine,
                    observer=observer,
                    evaluation=evaluation,
                )
            except BelowQuorum as error:
                kept = f"what there was after round {server.round} is in {self.directory.path}, and can be resumed"
                raise BelowQuorum(f"{error}; {kept}.") from error
            accepted |= dict.fromkeys(report.accepted, server.round)
            metrics = self._metrics(server, report)
            self.directory.append_metrics(metrics)
            self.directory.write_exhibits(self.method.exhibits(server))
            checkpoint.save(
                self.directory.path,
                Checkpoint(begun.run, server, accepted, self.transport.checkpoint()),
                keep=self.keep_checkpoints,
            )
            observer.round_ended(metrics)
        return server

    def _metrics(self, server: ServerState, report: RoundReport) -> dict[str, Any]:
        return {
            "round": server.round,
            **self._accuracy(server, report),
            **server.log,
            "seconds": report.seconds,
            **({"overhead": report.overhead} if report.overhead else {}),
            "upload_bytes": report.upload,
            "download_bytes": report.download,
            **({"evaluation_bytes": report.evaluation} if report.evaluation else {}),
            "asked": report.asked,
            "failures": report.failures,
        }

    def _accuracy(self, server: ServerState, report: RoundReport) -> dict[str, Any]:
        """Of the global model; where the server has no test data what clients said stands in the server's log."""
        if self.test is None:
            personal = server.log.get("personal_accuracy", {})
            samples = server.log.get("personal_samples", dict.fromkeys(personal, 1))
            return {"accuracy": over_samples(personal, samples)}
        started = time.perf_counter()
        model = self.method.build_model(server.key)
        model.load_state_dict(server.model)
        scored = score(model, self.test, self.domains, self.method.task, self.engine)
        report.seconds["evaluate"] = report.seconds.get("evaluate", 0.0) + time.perf_counter() - started
        return {"accuracy": scored.accuracy, **({"accuracy_by_domain": scored.by_domain} if scored.by_domain else {})}


def summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a run from its metrics: accuracy (by domain: that of the best round), mean bytes per client and
    round (those of evaluation apart), seconds, those lost to a network in each phase, the copy audit."""
    curve = [m["accuracy"] for m in rounds]
    asked = sum(len(m["asked"]) for m in rounds)

    def bytes_of(records: Iterable[Mapping[str, Mapping[str, int]]]) -> float:
        return sum(sum(by_client.values()) for record in records for by_client in record.values()) / max(1, asked)

    known = [m for m in rounds if m["accuracy"] is not None]
    best = max(known, key=lambda m: float(m["accuracy"]), default={})
    audits = [m["copy_audit"] for m in rounds if m.get("copy_audit")]
    return {
        "rounds": len(rounds),
        "best_accuracy": best.get("accuracy"),
        "best_accuracy_by_domain": best.get("accuracy_by_domain"),
        "last_accuracy": curve[-1] if curve else None,
        "curve": curve,
        "personal": _personal(rounds),
        "upload_bytes_per_client_round": bytes_of(m["upload_bytes"] for m in rounds),
        "download_bytes_per_client_round": bytes_of(m["download_bytes"] for m in rounds),
        "evaluation_bytes_per_client_round": bytes_of(m.get("evaluation_bytes", {}) for m in rounds),
        "seconds": sum(sum(m["seconds"].values()) for m in rounds),
        "overhead_seconds": _overhead([m["overhead"] for m in rounds if m.get("overhead")]),
        "copy_audit": worst_audit(audits),
    }


def _personal(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The mean accuracy of clients' personal models on their own test data, for methods that have such models."""
    found = [m["personal_accuracy"] for m in rounds if m.get("personal_accuracy")]
    if not found:
        return None
    means = [sum(by_client.values()) / len(by_client) for by_client in found]
    best = max(range(len(means)), key=means.__getitem__)
    return {"best_accuracy": means[best], "best_by_client": found[best], "last_accuracy": means[-1]}


def _overhead(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]] | None:
    """The mean over rounds, by phase."""
    phases = {phase: [of[phase] for of in rounds if phase in of] for of in rounds for phase in of}
    means = {
        phase: {name: sum(one[name] for one in found) / len(found) for name in found[0]}
        for phase, found in phases.items()
    }
    return means or None


def worst_audit(audits: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Over the rounds of a run, or over runs, each figure at its worst; where it is the mean of held-out images, its
    mean."""
    if not audits:
        return None

    def over_rounds(name: str) -> float:
        values = [audit[name] for audit in audits]
        by_chance = name.startswith("held_out") and not name.endswith("_max")
        return sum(values) / len(values) if by_chance else max(values)

    return {name: over_rounds(name) for name in audits[0]}
