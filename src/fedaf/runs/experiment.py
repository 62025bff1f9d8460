"""From a configuration to a finished run: data, split, method, transport, federation, and the result on disk."""

import json
import logging
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedaf import __version__
from fedaf.runs import assembly
from fedaf import config as configuration
from fedaf.config import FLAGS, Config
from fedaf.config.policies import read_policy
from fedaf.data import catalog
from fedaf.data.dataset import DataSet
from fedaf.data.entries import NO_DATA
from fedaf.data.partition import Partition
from fedaf.data.statistics import class_counts
from fedaf.engine import EagerEngine
from fedaf.federation.checkpoint import LATEST
from fedaf.federation.federation import Federation, summary
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundRules
from fedaf.federation.run_directory import CONFIG, METRICS, PARTITION, RESULT, RunDirectory, read_metrics
from fedaf.client.serving import Admission
from fedaf.methods.registry import METHODS
from fedaf.models import custom as own
from fedaf.models import registry as models
from fedaf.models.custom import Factory
from fedaf.models.validation import validate
from fedaf.protocol import Architecture, Disclosure, Key, Method, Policy, Task, Tensors, UserError
from fedaf.transports.local import LocalTransport

SCHEMA_VERSION = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Experiment:
    """A configuration with its data read and split, and its method built: ready to run, nothing computed yet."""

    config: Config
    dataset: DataSet
    partition: Partition
    task: Task
    method: Method
    engine: EagerEngine
    policy: Policy | None = None

    @property
    def counts(self) -> dict[str, list[int]]:
        """Samples of each class by client."""
        return self.partition.counts(self.dataset.train.labels.numpy(), self.dataset.num_classes)


@dataclass(frozen=True)
class RunResult:
    """What a run produced: the figures of ``result.json`` and the trained global model."""

    figures: Mapping[str, Any]
    model: nn.Module
    directory: Path | None

    @property
    def curve(self) -> list[float]:
        """Test accuracy after each round, in per cent."""
        return list(self.figures["curve"])

    @property
    def best_accuracy(self) -> float:
        return float(self.figures["best_accuracy"])

    @property
    def last_accuracy(self) -> float:
        return float(self.figures["last_accuracy"])


@configuration.accepts_flags
def run(
    *,
    preset: str = "paper",
    model: str | nn.Module | Factory | None = None,
    out: str | Path | None = None,
    observer: Observer | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> RunResult:
    """Run one federation and return its result.

    Every flag of ``fedaf run`` is a keyword argument.

    Args:
        preset: Named values for the data set and the method: ``paper`` or ``quick``.
        model: Name of a model, a network (a copy is trained), or a function of ``(in_channels, image_size,
            num_classes)`` that returns one.
        out: New directory to keep the run in, from which it can be resumed. Unset: nothing stays on disk.
        observer: Receives the events of the run, for example to show progress.
        settings: Any other settings by path: ``{"partition.kind": "iid"}``.
        {flags}
        **options: Options of the method: ``gamma=0.8``.

    Returns:
        The figures of ``result.json``, the trained global model, and the directory of the run.

    Raises:
        UserError: If a setting is unknown or has a wrong value, or the data are missing.

    Example:
        >>> result = fedaf.run(dataset="digits", method="fedaf", alpha=0.1, rounds=3)
        >>> result.best_accuracy
    """
    network = None if model is None or isinstance(model, str) else model
    flags = {name: options.pop(name) for name in FLAGS if name in options}
    flags["model"] = model if network is None else own.name_of(network)
    layers = [configuration.setting(path, value) for path, value in (settings or {}).items()]
    named = configuration.from_flags(**flags)
    config = configuration.build(configuration.merge(named, {"method": options}, *layers), preset=preset)
    configuration.refuse_unused(flags, config)
    experiment = prepare(config, model=network)
    if out is not None:
        return execute(experiment, Path(out), observer or Observer())
    with tempfile.TemporaryDirectory(prefix="fedaf-") as scratch:
        result = execute(experiment, Path(scratch) / "run", observer or Observer())
    return RunResult(result.figures, result.model, None)


def resume(out: str | Path, *, model: nn.Module | Factory | None = None, observer: Observer | None = None) -> RunResult:
    """Go on with the run in ``out`` to the numbers of a run that was never stopped. ``model`` is what ``run`` was
    given, where that was not a name."""
    return continue_run(reopen(Path(out), model=model), Path(out), observer or Observer())


def prepare(
    config: Config,
    *,
    saved_partition: Path | None = None,
    model: nn.Module | Factory | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Experiment:
    """Check everything that can be checked before computing, cheapest first, and open the data. ``model`` is the one
    that the configuration records as given from Python; ``watch`` is told how many image files are decoded of how many,
    where that is needed."""
    if config.data.name == NO_DATA:
        raise UserError(
            f"data.name is {NO_DATA!r}, which is for a server whose clients are on a network; name a data set."
        )
    catalog.check_name(config.data.name)
    factory = models.find(config.model.name, model, keep_weights=config.model.keep_weights)
    engine = assembly.engine_for(config)
    method_class = METHODS.find(config.method_name)
    policy = read_policy(config.federation.policy) if config.federation.policy else None
    data = assembly.data_for(config, Path(config.data.dir), watch=watch)
    config = assembly.resolve_auto(config, data)
    task = assembly.task_for(config, data.train.images.shape[1:], data.num_classes, data.mean, data.std)
    split = Partition.reread(saved_partition, data) if saved_partition else assembly.split(config, data)
    if split.redraws:
        log.info(
            "the split was drawn %d times until every client had %d samples",
            split.redraws + 1,
            config.partition.min_size,
        )
    architecture = assembly.architecture_for(config, task, factory)
    validate(architecture, task, device=engine.device)
    method = method_class(config.method, task, architecture)
    experiment = Experiment(config, data, split, task, method, engine, policy)
    method.check(experiment.counts)
    return experiment


def own_counts(config: Config, dataset: str) -> list[int]:
    """The samples by class of a client that brings its own data to the run of a server's configuration."""
    entry = assembly.spec_for(config) if config.data.name == NO_DATA else None
    data = catalog.load(dataset, Path(config.data.dir), image_size=config.data.image_size, entry=entry)
    return class_counts(data.train, data.num_classes)


def disclosure(config: Config, counts: Sequence[int]) -> Disclosure | None:
    """What a round of a configuration takes out of a client with these samples by class. No data are needed, nor a
    model."""
    return _bare_method(config, len(counts)).discloses(counts)


def phases_of(config: Config) -> int:
    """How often a round of a configuration asks its clients; where the server has no data they evaluate, too."""
    method = _bare_method(config, 2)
    return len(method.phases) + (method.evaluation is not None or config.data.name == NO_DATA)


def _bare_method(config: Config, classes: int) -> Method:
    """The method of a configuration without a model, to be asked what it would do."""
    task = Task(config.data.name, 1, 1, 1, classes, (0.5,), (0.25,))
    return METHODS.find(config.method_name)(config.method, task, Architecture(lambda key: nn.Identity()))


def execute(experiment: Experiment, out: Path, observer: Observer) -> RunResult:
    """Run from the first round in a new directory."""
    with closing(RunDirectory.create(out)) as directory, _threads(experiment.config.run.threads):
        directory.write(CONFIG, experiment.config.to_toml())
        return _start(experiment, directory, observer)


def reopen(
    out: Path, *, model: nn.Module | Factory | None = None, moved: Mapping[str, Any] | None = None
) -> Experiment:
    """The experiment of an earlier run, with the very split it had. ``moved`` has the settings that say where its data
    are now, and what computes."""
    if not (out / CONFIG).is_file():
        raise UserError(f"{out} is not a run directory of fedaf: it has no {CONFIG}; give --resume one that has.")
    config = configuration.build(configuration.merge(configuration.read_toml(out / CONFIG), moved or {}))
    saved = out / PARTITION
    if not saved.is_file() and (out / LATEST).is_file():
        raise UserError(
            f"{out} has no {PARTITION}; bring it back, or, if this is a run over a network, go on with it by "
            f"fedaf deploy run --out {out} in the server's folder."
        )
    return prepare(config, saved_partition=saved if saved.is_file() else None, model=model)


def continue_run(experiment: Experiment, out: Path, observer: Observer) -> RunResult:
    """Go on after the last checkpoint of ``out``, to the numbers of a run that was never stopped. A run that was
    killed before its first checkpoint starts."""
    with closing(RunDirectory(out)) as directory, _threads(experiment.config.run.threads):
        if not (out / LATEST).exists() and not (out / METRICS).exists():
            return _start(experiment, directory, observer)
        return _play(experiment, directory, observer, resumed=True)


def _start(experiment: Experiment, directory: RunDirectory, observer: Observer) -> RunResult:
    directory.write(PARTITION, experiment.partition.to_json(experiment.dataset))
    return _play(experiment, directory, observer, resumed=False)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """PyTorch's threads for one run, and as they were after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _play(experiment: Experiment, directory: RunDirectory, observer: Observer, *, resumed: bool) -> RunResult:
    config = experiment.config
    dataset, engine = experiment.dataset, experiment.engine
    shards = experiment.partition.shards(dataset)
    admission = (
        Admission(experiment.policy, experiment.method, config.method_name) if experiment.policy is not None else None
    )
    federation = Federation(
        method=experiment.method,
        transport=LocalTransport(shards, engine, admission),
        test=dataset.test,
        domains=dataset.domains,
        engine=engine.watch(lambda done, total: observer.progressed("server", done, total)),
        directory=directory,
        terms=RoundRules(config.federation.participation, config.federation.quorum, config.federation.deadline),
        rounds=config.run.rounds,
        keep_checkpoints=config.run.keep_checkpoints,
    )
    begun = federation.resume() if resumed else federation.start(Key(config.run.seed))
    if resumed:
        must_fit(experiment.method, begun.server.model, directory.path, name=config.model.name)
    observer.started(
        title=f"{config.method_name} on {config.data.name}",
        rounds=config.run.rounds,
        first_round=begun.server.round + 1,
        phases=len(experiment.method.phases) + (experiment.method.evaluation is not None),
        device=str(engine.device),
    )
    try:
        server = federation.run(begun, observer)
    finally:
        observer.ended()
    figures = figures_of(config, engine, len(shards), read_metrics(directory.path))
    directory.write(RESULT, json.dumps(figures, indent=2) + "\n")
    model = experiment.method.build_model(server.key)
    model.load_state_dict(server.model)
    return RunResult(figures, model.eval(), directory.path)


def must_fit(method: Method, saved: Tensors, path: Path, *, name: str) -> None:
    """Raise ``UserError`` where a checkpoint is not of this model: one's own may have changed since."""
    model = method.build_model(Key(0)).state_dict()
    for tensor in {**model, **saved}:
        ours, theirs = ("none" if t is None else str(list(t.shape)) for t in (model.get(tensor), saved.get(tensor)))
        if ours != theirs:
            raise UserError(
                f"the checkpoint in {path} is of another model: {tensor} is {theirs} there and {ours} in "
                f"{name}; give the model the run was started with."
            )


def figures_of(
    config: Config, engine: EagerEngine, clients: int, rounds: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The content of ``result.json``, from the metrics of all rounds."""
    return {
        "schema_version": SCHEMA_VERSION,
        "method": config.method_name,
        "preset": config.preset,
        "dataset": config.data.name,
        "tested_on": _tested_on(config),
        "partition": config.partition.kind,
        "alpha": config.partition.alpha if config.partition.kind == "dirichlet" else None,
        "clients": clients,
        "seed": config.run.seed,
        **summary(rounds),
        "model": config.model.name,
        "device": device_name(engine.device),
        "threads": torch.get_num_threads(),
        "engine": engine.name,
        "precision": engine.precision,
        "versions": {"fedaf": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _tested_on(config: Config) -> str:
    if config.data.name == NO_DATA:
        return "test data of the clients"
    held_out = config.data.validation
    return "test" if held_out is None else f"{held_out} held-out training images"


def device_name(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)
