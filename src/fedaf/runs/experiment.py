"""Experiments in one process: from a configuration to a finished run. This is the Python API of fedaf."""

import inspect
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedaf import config as configuration
from fedaf.client.serving import Admission
from fedaf.common.naming import nearest
from fedaf.common.stages import reached
from fedaf.config import FLAGS, Config
from fedaf.config.policies import read_policy
from fedaf.config.tables import MethodTable
from fedaf.data import catalog
from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition
from fedaf.data.spec import NO_DATA
from fedaf.data.statistics import class_counts
from fedaf.engine import EagerEngine
from fedaf.federation.checkpoint import LATEST
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import CONFIG, PARTITION, RunDirectory
from fedaf.methods.registry import METHODS
from fedaf.models import custom
from fedaf.models.custom import Factory
from fedaf.models.validation import validate
from fedaf.protocol import Architecture, Disclosure, Method, Policy, Task, UserError
from fedaf.runs import assembly, composition
from fedaf.runs.composition import RunResult, ServerSite, device_name
from fedaf.transports.local import LocalTransport

__all__ = ["Experiment", "RunResult", "device_name", "prepare", "resume", "run"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Experiment:
    """A configuration with its data loaded and split and its method built, ready to run.

    Args:
        config: The configuration, with ``auto`` resolved.
        dataset: The data.
        partition: Which client has which samples.
        task: What is to be learned.
        method: The method.
        engine: Computes for the server and all clients.
        policy: The policy of all clients, if there is one.
    """

    config: Config
    dataset: DataSet
    partition: Partition
    task: Task
    method: Method
    engine: EagerEngine
    policy: Policy | None = None

    @property
    def counts(self) -> dict[str, list[int]]:
        """Number of samples per class, by client."""
        return self.partition.counts(self.dataset.train.labels.numpy(), self.dataset.num_classes)


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
    flags["model"] = model if network is None else custom.name_of(network)
    layers = [configuration.setting(path, value) for path, value in (settings or {}).items()]
    named = configuration.from_flags(**flags)
    given = configuration.merge(named, {"method": options}, *layers)
    _refuse_unknown(options, given["method"].get("name"))
    config = configuration.build(given, preset=preset)
    configuration.refuse_unused(flags, config)
    experiment = prepare(config, model=network)
    if out is not None:
        return execute(experiment, Path(out), observer or Observer())
    with tempfile.TemporaryDirectory(prefix="fedaf-") as scratch:
        result = execute(experiment, Path(scratch) / "run", observer or Observer())
    return RunResult(result.figures, result.model, None)


def _refuse_unknown(options: Mapping[str, Any], method: str | None) -> None:
    """Refuse keyword arguments of ``run`` that are neither flags nor options of the method."""
    of_method = METHODS.find(method or MethodTable().name).Options.model_fields
    accepted = [*list(inspect.signature(run).parameters)[:-1], *of_method]
    for name in options:
        if name not in of_method:
            what = f"fedaf.run has no argument {name!r}{nearest(name, accepted)}"
            raise UserError(f"{what}; expected one of {', '.join(accepted)}.", code="FEDAF-CONFIG-KEY")


def resume(out: str | Path, *, model: nn.Module | Factory | None = None, observer: Observer | None = None) -> RunResult:
    """Resume a run after its last checkpoint. The result equals that of a run that was never interrupted.

    Args:
        out: The run directory.
        model: The model that was passed to ``run``, if it was not a name.
        observer: Receives the events of the run, for example to show progress.

    Returns:
        The result of the whole run.

    Raises:
        UserError: ``out`` is not a run directory, its checkpoint is unreadable, or the data or the model changed.
        InUse: Another process is running in ``out``.
    """
    return continue_run(reopen(Path(out), model=model), Path(out), observer or Observer())


def prepare(
    config: Config,
    *,
    saved_partition: Path | None = None,
    model: nn.Module | Factory | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Experiment:
    """Check a configuration, cheapest checks first, load its data and build its method.

    Args:
        config: The configuration.
        saved_partition: The ``partition.json`` of an earlier run, instead of a new split.
        model: The model that was passed from Python, if it was not a name.
        watch: Called with the number of decoded image files and their total.

    Raises:
        UserError: The configuration cannot be run.
    """
    if config.data.name == NO_DATA:
        what = f"data.name is {NO_DATA!r}, which only a server with clients on a network can use"
        raise UserError(f"{what}; choose a data set.", code="FEDAF-DATA-NONE")
    catalog.check_name(config.data.name)
    factory = custom.find(config.model.name, model, keep_weights=config.model.keep_weights)
    reached("PyTorch is imported")
    engine = assembly.engine_for(config)
    reached(f"the engine is ready ({engine.name} on {engine.device})")
    method_class = METHODS.find(config.method_name)
    policy = read_policy(config.federation.policy) if config.federation.policy else None
    data = assembly.data_for(config, Path(config.data.dir), watch=watch)
    reached(f"the data are read ({len(data.train)} training images)")
    config = assembly.resolve_auto(config, data)
    task = assembly.task_for(config, data.train.images.shape[1:], data)
    split = Partition.reread(saved_partition, data) if saved_partition else assembly.split(config, data)
    if split.redraws:
        log.info("drew %d splits until every client had %d samples", split.redraws + 1, config.partition.min_size)
    reached("the data are split")
    architecture = assembly.architecture_for(config.model, config.run.seed, task, factory)
    validate(architecture, task, device=engine.device)
    reached("the model is checked")
    method = method_class(config.method, task, architecture)
    experiment = Experiment(config, data, split, task, method, engine, policy)
    method.check(experiment.counts)
    return experiment


def own_counts(config: Config, dataset: str) -> list[int]:
    """Return the samples per class of a client with its own data, in the run of a server's configuration."""
    entry = assembly.spec_for(config) if config.data.name == NO_DATA else None
    data = catalog.load(dataset, Path(config.data.dir), image_size=config.data.image_size, spec=entry)
    return class_counts(data.train, data.num_classes)


def disclosure(config: Config, counts: Sequence[int]) -> Disclosure | None:
    """Return what a round reveals about a client with these samples per class; needs no data and no model."""
    return _bare_method(config, len(counts)).discloses(counts)


def phases_of(config: Config) -> int:
    """Return the number of exchanges per round, including the evaluation by clients."""
    method = _bare_method(config, 2)
    return len(method.phases) + (method.evaluation is not None or config.data.name == NO_DATA)


def _bare_method(config: Config, classes: int) -> Method:
    """Return the method of a configuration without a model, to ask about its phases and disclosure."""
    task = Task(config.data.name, 1, 1, 1, classes, (0.5,), (0.25,))
    return METHODS.find(config.method_name)(config.method, task, Architecture(lambda key: nn.Identity()))


def execute(experiment: Experiment, out: Path, observer: Observer) -> RunResult:
    """Run an experiment in a new directory.

    Raises:
        UserError: ``out`` is not empty.
    """
    with RunDirectory.create(out) as directory:
        directory.write(CONFIG, experiment.config.to_toml())
        return _play(experiment, directory, observer)


def reopen(
    out: Path, *, model: nn.Module | Factory | None = None, moved: Mapping[str, Any] | None = None
) -> Experiment:
    """Prepare the experiment of an earlier run, with its saved split.

    Args:
        out: The run directory.
        model: The model that was passed from Python, if it was not a name.
        moved: Settings that replace saved ones: where the data are now, and what computes.

    Raises:
        UserError: ``out`` is not a run directory, or the data changed.
    """
    if not (out / CONFIG).is_file():
        what = (
            f"{out} is not the directory of a run: it has no {CONFIG}; give --resume a directory that fedaf run wrote."
        )
        raise UserError(what, code="FEDAF-RUN-NOT-FOUND")
    config = configuration.build(configuration.merge(configuration.read_toml(out / CONFIG), moved or {}))
    saved = out / PARTITION
    if not saved.is_file() and (out / LATEST).is_file():
        elsewhere = f"a run over a network is continued by fedaf deploy run --out {out} in the server's folder"
        raise UserError(f"{out} has no {PARTITION}; restore it, or: {elsewhere}.", code="FEDAF-RUN-NO-PARTITION")
    return prepare(config, saved_partition=saved if saved.is_file() else None, model=model)


def continue_run(experiment: Experiment, out: Path, observer: Observer) -> RunResult:
    """Continue the run in ``out`` after its last checkpoint; start it if it was killed before its first one.

    Raises:
        InUse: Another process is running in ``out``.
    """
    with RunDirectory(out) as directory:
        return _play(experiment, directory, observer)


def _play(experiment: Experiment, directory: RunDirectory, observer: Observer) -> RunResult:
    config, data, method, policy = experiment.config, experiment.dataset, experiment.method, experiment.policy
    shards = experiment.partition.shards(data)
    admission = None if policy is None else Admission(policy, method, config.method_name)
    site = ServerSite(
        config=config,
        method=method,
        engine=experiment.engine,
        test=data.test,
        domains=data.domains,
        clients=len(shards),
        classes=data.classes,
        selection=data.selection,
    )
    with _threads(config.run.threads):
        if not (directory.path / LATEST).exists():
            directory.write(PARTITION, experiment.partition.to_json(data))
        reached("the run starts")
        return composition.play(site, LocalTransport(shards, experiment.engine, admission), directory, observer)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads inside a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
