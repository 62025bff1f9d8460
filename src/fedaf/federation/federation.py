"""All rounds of a run. Each round is evaluated, logged and checkpointed before the next one starts."""

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedaf.client.evaluation import Evaluate, pooled
from fedaf.data.dataset import Split
from fedaf.federation import checkpoint, model_folder
from fedaf.federation.checkpoint import Checkpoint
from fedaf.federation.metrics import client_lines, line_of
from fedaf.federation.model_folder import Kept, ModelCard
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundReport, RoundRules, play_round
from fedaf.federation.run_directory import RunDirectory, read_metrics
from fedaf.protocol import BelowQuorum, Engine, Key, Method, ServerState, Transport
from fedaf.training.evaluate import score
from fedaf.training.scores import Holding, Scores, accuracy_by_client


@dataclass(frozen=True)
class Federation:
    """Everything that the rounds of a run need.

    Args:
        method: The method.
        transport: Delivers requests to the clients.
        test: The server's test set; ``None`` if the clients evaluate on their own test data.
        domains: Names of the domains of ``test``.
        engine: Computes the server's work.
        directory: Where the run is recorded.
        rules: Participation, quorum and deadline.
        rounds: Number of rounds.
        card: Describes the models that are kept.
        selection: Images that were set aside to choose the best model by.
        keep_checkpoints: How many checkpoints to keep; 0 keeps all.
        holdings: What each client holds, to compute the accuracy on its data; empty if the server does not know.
    """

    method: Method
    transport: Transport
    test: Split | None
    domains: Sequence[str]
    engine: Engine
    directory: RunDirectory
    rules: RoundRules
    rounds: int
    card: ModelCard
    selection: Split | None = None
    keep_checkpoints: int = 2
    holdings: Mapping[str, Holding] = field(default_factory=dict)

    def start(self, key: Key) -> Checkpoint:
        """Return the state before round 1, after writing it as a checkpoint."""
        begun = self._save(uuid.uuid4().hex, self.method.initial(key), {}, {})
        self.directory.rewind(0)
        return begun

    def resume(self) -> Checkpoint:
        """Return the state of the newest checkpoint, after dropping metrics and events of later rounds.

        Raises:
            UserError: There is no readable checkpoint, the metrics are damaged, or the run was begun by another version
                of the method.
        """
        found = checkpoint.load(self.directory.path, self.method)
        self.transport.restore(found.clients)
        self.directory.rewind(found.server.round)
        return found

    def play(self, begun: Checkpoint, observer: Observer) -> Iterator[tuple[ServerState, dict[str, Any]]]:
        """Play the remaining rounds, one at a time.

        Yields:
            The state after a round and its metrics, once both are on disk.

        Raises:
            BelowQuorum: Too few clients replied. The run can be resumed.
        """
        server, accepted = replace(begun.server, rounds=self.rounds), dict(begun.accepted)
        publishable = dict(begun.publishable)
        evaluation = Evaluate(self.method) if self.test is None else None
        if server.round:  # a killed run may have written this checkpoint and not its model
            self._keep(server, read_metrics(self.directory.path)[-1])
        while server.round < self.rounds:
            try:
                server, report = play_round(
                    server,
                    method=self.method,
                    transport=self.transport,
                    clients=self.transport.clients(),
                    accepted=accepted,
                    run=begun.run,
                    rules=self.rules,
                    engine=self.engine,
                    observer=observer,
                    evaluation=evaluation,
                )
            except BelowQuorum as error:
                hint = f"the state after round {server.round} is in {self.directory.path} and can be resumed"
                raise BelowQuorum(f"{error}; {hint}.", code=error.code) from error
            accepted |= dict.fromkeys(report.accepted, server.round)
            publishable |= {name: now and publishable.get(name, True) for name, now in report.publishable.items()}
            metrics = self._metrics(server, report)
            self.directory.append_metrics(metrics)
            images = self.write_images(server)
            self._save(begun.run, server, accepted, publishable)
            self._keep(server, metrics)
            if images:
                observer.images_shared(server.round, images)
            observer.round_ended(metrics)
            yield server, metrics

    def write_images(self, server: ServerState) -> dict[str, Path]:
        """Write the images that clients shared, and return the file of each client."""
        return self.directory.write_exhibits(self.method.exhibits(server), server.round)

    def _save(
        self, run: str, server: ServerState, accepted: Mapping[str, int], publishable: Mapping[str, bool]
    ) -> Checkpoint:
        saved = Checkpoint(run, server, accepted, self.transport.checkpoint(), self.method.version, publishable)
        checkpoint.save(self.directory.path, saved, keep=self.keep_checkpoints)
        return saved

    def _keep(self, server: ServerState, metrics: Mapping[str, Any]) -> None:
        """Keep the model after a round for use, if the method has one."""
        if self.method.has_global_model:
            now = Kept(server.round, metrics.get("selection_accuracy"))
            model_folder.keep(self.directory.path, self.card, server.model, now)
        else:
            model_folder.write_card(self.directory.path, self.card)

    def _metrics(self, server: ServerState, report: RoundReport) -> dict[str, Any]:
        return {
            "round": server.round,
            **server.log,
            **self._model_metrics(server, report),
            **self._select(server, report),
            "seconds": report.seconds,
            **({"overhead": report.overhead} if report.overhead else {}),
            **({"client_seconds": report.client_seconds} if report.client_seconds else {}),
            **self._communication(report),
            "asked": report.asked,
            "failures": report.failures,
        }

    def _communication(self, report: RoundReport) -> dict[str, Any]:
        """The bytes that were sent. A reference sends none: no network would carry what its phases exchange."""
        if self.method.reference:
            return {"upload_bytes": {}, "download_bytes": {}}
        evaluation = {"evaluation_bytes": report.evaluation} if report.evaluation else {}
        return {"upload_bytes": report.upload, "download_bytes": report.download, **evaluation}

    def _model_metrics(self, server: ServerState, report: RoundReport) -> dict[str, Any]:
        """Test the global model. Without test data or a global model, the figures come from the clients' evaluation."""
        if not self.method.has_global_model:  # on the clients' label distributions, as those of a global model
            return _figures_of_clients({**server.log, "accuracy_by_client": server.log["personal_own_accuracy"]})
        if self.test is None:
            return _figures_of_clients(server.log)
        started = time.perf_counter()
        scores = self._scores(server, self.test)
        by_client = accuracy_by_client(scores, self.holdings)
        report.seconds["evaluate"] = report.seconds.get("evaluate", 0.0) + time.perf_counter() - started
        return {**line_of(scores), **client_lines(by_client)}

    def _select(self, server: ServerState, report: RoundReport) -> dict[str, float]:
        """Score the global model on the selection images, by which the best model is chosen."""
        if self.selection is None or not self.method.has_global_model:
            return {}
        started = time.perf_counter()
        accuracy = self._scores(server, self.selection).accuracy
        report.seconds["select"] = time.perf_counter() - started
        return {"selection_accuracy": accuracy}

    def _scores(self, server: ServerState, images: Split) -> Scores:
        """Test the global model on some images of the server."""
        model = self.method.build_model(server.key)
        model.load_state_dict(server.model)
        return score(model, images, self.domains, self.method.task, self.engine)


def _figures_of_clients(log: Mapping[str, Any]) -> dict[str, Any]:
    """Return what clients measured, from the log of their evaluation; of personal models, the pooled accuracy."""
    personal = log.get("personal_accuracy", {})
    by_client = log.get("accuracy_by_client", personal)
    accuracy = log["accuracy"] if "accuracy" in log else pooled(personal, log.get("personal_samples", {}))
    return {"accuracy": accuracy, **client_lines(by_client)}
