"""The one way to play a run, in one process or over a network: start or resume, play the rounds, write the result."""

import logging
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from fedaf import config as configuration
from fedaf.client.left_out import LeftOut
from fedaf.common.readable import readable_json
from fedaf.common.source import source_commit
from fedaf.common.version import __version__
from fedaf.config import Config
from fedaf.data.dataset import Split, class_names
from fedaf.data.spec import NO_DATA
from fedaf.engine import EagerEngine
from fedaf.federation import checkpoint, model_folder
from fedaf.federation.checkpoint import Checkpoint
from fedaf.federation.events import EventWriter
from fedaf.federation.federation import Federation
from fedaf.federation.model_folder import ModelCard
from fedaf.federation.observer import Observer, Observers, RunInfo, ending
from fedaf.federation.rounds import RoundRules
from fedaf.federation.run_directory import METRICS, RESULT, RunDirectory, read_metrics
from fedaf.federation.summary import summary
from fedaf.federation.trackers.registry import make_trackers
from fedaf.privacy.statement import guarantee
from fedaf.protocol import Key, Method, Tensors, Transport, UserError
from fedaf.runs.model import TrainedModel
from fedaf.runs.result import RunResult
from fedaf.training.scores import Holding

SCHEMA_VERSION = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSite:
    """Everything that the server of a run needs, from its configuration.

    Args:
        config: The configuration, with ``auto`` resolved.
        method: The method.
        engine: Computes the server's work.
        test: The server's test set; ``None`` if the clients evaluate on their own test data.
        domains: Names of the domains of ``test``.
        clients: Number of clients; ``None`` if unknown before they connect.
        classes: Names of the classes; empty if they have none.
        holdings: What each client holds; empty over a network, where the server does not know.
        selection: Images that were set aside to choose the best model by.
        left_out: The samples that the method leaves out; ``None`` over a network, and for methods that use all samples.
        ledgers: Folder of the clients' ledgers of differential privacy; ``None`` over a network, and without it.
    """

    config: Config
    method: Method
    engine: EagerEngine
    test: Split | None
    domains: Sequence[str]
    clients: int | None = None
    classes: Sequence[str] = ()
    holdings: Mapping[str, Holding] = field(default_factory=dict)
    selection: Split | None = None
    left_out: LeftOut | None = None
    ledgers: Path | None = None


class Play(Iterator[Mapping[str, Any]]):
    """A run that is being played: call ``complete``, or iterate over its rounds and then call ``finish``.

    It starts the run of a directory, or resumes it after its last checkpoint. Each item is the metrics of a round that
    was checkpointed. At the end of its ``with`` block, observers and trackers learn how the run ended.

    Args:
        site: The server's side of the run.
        transport: Delivers requests to the clients.
        directory: The run directory. It already has the configuration.
        observer: Receives the events of the run, in addition to ``events.jsonl`` and the trackers of ``run.track``.
        deadline: Seconds that a phase may take if the configuration sets no deadline.

    Raises:
        UserError: The checkpoint is unreadable, or of another model.
        BelowQuorum: Too few clients replied. The run can be resumed.
    """

    def __init__(
        self,
        site: ServerSite,
        transport: Transport,
        directory: RunDirectory,
        observer: Observer,
        deadline: float | None = None,
    ) -> None:
        config, table = site.config, site.config.federation
        self._site, self._directory, self._events = site, directory, EventWriter(directory.path)
        trackers = make_trackers(config.run.track)
        self._observers = observers = Observers(observer, *trackers, essential=[self._events])
        federation = Federation(
            method=site.method,
            transport=transport,
            test=site.test,
            domains=site.domains,
            engine=site.engine.watch(lambda done, total: observers.progressed("server", done, total)),
            directory=directory,
            rules=RoundRules(_participation(site), table.quorum, table.deadline or deadline),
            rounds=config.run.rounds,
            keep_checkpoints=config.run.keep_checkpoints,
            holdings=site.holdings,
            card=model_card(config, site.method, site.classes),
            selection=site.selection,
        )
        begun = _begin(federation, config)
        self._server, self._ended = begun.server, False
        self._rounds = federation.play(begun, observers)
        observers.described(
            RunInfo(
                run=begun.run,
                title=title_of(config),
                directory=directory.path,
                settings=config.flat,
                versions=_versions(),
                rounds=config.run.rounds,
                history=tuple(read_metrics(directory.path)),
                images=federation.write_images(begun.server) if begun.server.round else {},
            )
        )
        observers.started(
            title=title_of(config),
            rounds=config.run.rounds,
            first_round=begun.server.round + 1,
            phases=len(site.method.phases) + (site.method.evaluation is not None or site.test is None),
            device=str(site.engine.device),
        )

    def __next__(self) -> Mapping[str, Any]:
        try:
            self._server, metrics = next(self._rounds)
        except BaseException:  # no round is left, or one failed or was interrupted
            self._end()
            raise
        return metrics

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._end()
        self._observers.closed(*ending(error))

    def complete(self) -> RunResult:
        """Play all rounds that are left, and write the result."""
        for _ in self:
            pass
        return self.finish()

    def finish(self) -> RunResult:
        """Write ``result.json`` for the rounds that were played, including those before a resume.

        Returns:
            The result. If rounds are left, the run can be resumed.
        """
        self._end()
        site, path = self._site, self._directory.path
        rounds = read_metrics(path)
        clients = len({client for m in rounds for client in m["asked"]}) if site.clients is None else site.clients
        figures = _figures(site, clients, rounds)
        self._directory.write(RESULT, readable_json(figures) + "\n")
        self._events.finished()
        return RunResult(figures, self._trained(), path, rounds)

    def _trained(self) -> TrainedModel | None:
        """Return the model that the run is for, if there is one."""
        method, path = self._site.method, self._directory.path
        card = model_folder.read_card(path)
        if card is None or not card.files or not method.has_global_model:
            return None
        module = method.build_model(self._server.key)
        weights = self._server.model if card.which == "last" else model_folder.read_weights(path, card.which)
        module.load_state_dict(dict(weights))
        return TrainedModel(module.eval(), card, card.which, card.files[card.which].round)

    def _end(self) -> None:
        """Tell the observers once that no more rounds follow."""
        if not self._ended:
            self._ended = True
            self._observers.ended()


def _participation(site: ServerSite) -> float:
    """Return the fraction of clients that take part in a round: all of them in a reference, which costs no bytes."""
    return 1.0 if site.method.reference else site.config.federation.participation


def title_of(config: Config) -> str:
    """Return the method and the data of a run, for people."""
    return f"{config.method_name} on {'own data' if config.data.name == NO_DATA else config.data.name}"


def _begin(federation: Federation, config: Config) -> Checkpoint:
    """Resume the run, or start it if it was never started or killed before its first checkpoint."""
    path = federation.directory.path
    if not checkpoint.exists(path) and not (path / METRICS).exists():
        return federation.start(Key(config.run.seed))
    begun = federation.resume()
    must_fit(federation.method.build_model(Key(0)), begun.server.model, path, name=config.model.name)
    finished = begun.server.round >= config.run.rounds
    sentence = (
        "the run in %s is finished: all %d rounds are done" if finished else "resuming the run in %s after round %d"
    )
    log.info(sentence, path, begun.server.round)
    return begun


def model_card(config: Config, method: Method, classes: Sequence[str]) -> ModelCard:
    """Return what is needed to use the models of a run without its data."""
    task = method.task
    return ModelCard(
        method={"name": config.method_name, **config.method.model_dump(mode="json")},
        model=config.model.model_dump(mode="json"),
        seed=config.run.seed,
        dataset=task.dataset,
        classes=class_names(classes, task.num_classes),
        image_shape=task.image_shape,
        mean=task.mean,
        std=task.std,
        parameters=sum(parameter.numel() for parameter in method.build_model(Key(0)).parameters()),
        versions=_versions(),
    )


def must_fit(model: nn.Module, saved: Tensors, path: Path, *, name: str) -> None:
    """Check that the weights that a run saved are those of a model: a custom model may have changed.

    Raises:
        UserError: They are of another model.
    """
    own = model.state_dict()
    for tensor in {**own, **saved}:
        current, stored = ("none" if t is None else str(list(t.shape)) for t in (own.get(tensor), saved.get(tensor)))
        if current != stored:
            what = f"the run in {path} is of another model: {tensor} is {stored} there and {current} in {name}"
            raise UserError(f"{what}; use the model that the run was started with.", code="FEDAF-RUN-OTHER-MODEL")


def _figures(site: ServerSite, clients: int, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of ``result.json``, from the metrics of all rounds."""
    config, engine = site.config, site.engine
    return {
        "schema_version": SCHEMA_VERSION,
        "method": config.method_name,
        "reference": site.method.reference,
        "global_model": site.method.has_global_model,
        "preset": config.preset,
        "settings_changed": configuration.changed(config),
        "dataset": config.data.name,
        "tested_on": tested_on(config),
        "test_images": None if site.test is None else len(site.test),
        "partition": config.partition.kind,
        "alpha": config.partition.alpha if config.partition.kind == "dirichlet" else None,
        "clients": clients,
        "seed": config.run.seed,
        "classes": list(class_names(site.classes, site.method.task.num_classes)),
        "planned_rounds": config.run.rounds,
        **summary(rounds),
        "left_out": None if site.left_out is None else asdict(site.left_out),
        "privacy": None if config.privacy.epsilon is None else guarantee(config.privacy, site.ledgers),
        "model": config.model.name,
        "device": device_name(engine.device),
        "threads": torch.get_num_threads(),
        "engine": engine.name,
        "precision": engine.precision,
        "method_version": site.method.version,
        "commit": source_commit(),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    return {"fedaf": __version__, "torch": torch.__version__, "python": platform.python_version()}


def tested_on(config: Config) -> str:
    """Return what the models of a run are tested on: ``test`` is the test split of its data set."""
    if config.data.name == NO_DATA:
        return "test data of the clients"
    table = config.data
    if table.validation is not None:
        return f"{table.validation} held-out training images"
    return "test" if table.test is None else f"test split of {table.test}"


def device_name(device: torch.device) -> str:
    """Return a device's name; for a GPU with its model."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
