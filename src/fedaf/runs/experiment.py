"""Experiments in one process: from a configuration to a finished run."""

import logging
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedaf import config as configuration
from fedaf.client.left_out import LeftOut, left_out
from fedaf.client.serving import Admission
from fedaf.client.vault import vaults
from fedaf.common.stages import reached
from fedaf.config import Config
from fedaf.config.policies import read_policy
from fedaf.data import catalog
from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, client_id
from fedaf.data.spec import NO_DATA
from fedaf.data.statistics import class_counts
from fedaf.engine import EagerEngine
from fedaf.federation import checkpoint
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import CONFIG, PARTITION, RESULT, RunDirectory, read_metrics
from fedaf.federation.trackers.registry import find_trackers
from fedaf.methods.registry import METHODS
from fedaf.models import custom
from fedaf.models.custom import Factory
from fedaf.models.validation import validate
from fedaf.privacy.ledger import Ledger
from fedaf.protocol import Architecture, Disclosure, Method, Policy, Shard, Task, Transport, UserError
from fedaf.runs import assembly
from fedaf.runs.assembly import SharedData
from fedaf.runs.composition import Play, ServerSite
from fedaf.runs.result import RunResult
from fedaf.training.scores import Holding
from fedaf.transports.local import LocalTransport

log = logging.getLogger(__name__)

LEDGERS = "privacy"  # in the run directory
_POOLED = "client-0"  # the one client of a method that pools


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

    @property
    def holdings(self) -> dict[str, Holding]:
        """What each client holds: samples per class and, if every domain is one client, its domain."""
        by_domain = self.config.partition.kind == "domain"
        domains = {client_id(name): name for name in self.dataset.domains} if by_domain else {}
        return {client: Holding(counts, domains.get(client)) for client, counts in self.counts.items()}

    @property
    def admission(self) -> Admission | None:
        """What applies the clients' policy, if there is one."""
        return None if self.policy is None else Admission(self.policy, self.method, self.config.method_name)

    def ledgers(self, out: Path) -> Path:
        """Return the folder of the clients' ledgers of differential privacy, for a run in the directory ``out``."""
        return out / LEDGERS if self.config.privacy.ledger is None else Path(self.config.privacy.ledger)

    @property
    def left_out(self) -> LeftOut | None:
        """The samples that the method leaves out of condensation; ``None`` for methods that use all samples."""
        return left_out(self.method, self.counts, self.admission)

    @property
    def shards(self) -> Mapping[str, Shard]:
        """The data of each client; a method that pools has one client with all of them."""
        shards = self.partition.shards(self.dataset)
        if not self.method.pools:
            return shards
        parts = [shards[client] for client in self.partition.rows]
        order = np.concatenate(list(self.partition.rows.values())).argsort()  # as in the data set
        images, labels = (torch.cat([getattr(part, name) for part in parts])[order] for name in ("images", "labels"))
        return {_POOLED: Shard(images, labels, self.dataset.num_classes)}


def prepare(
    config: Config,
    *,
    saved_partition: Path | None = None,
    model: nn.Module | Factory | None = None,
    watch: Callable[[int, int], None] | None = None,
    shared: SharedData | None = None,
) -> Experiment:
    """Check a configuration, cheapest checks first, load its data and build its method.

    Args:
        config: The configuration.
        saved_partition: The ``partition.json`` of an earlier run, instead of a new split.
        model: The model that was passed from Python, if it was not a name.
        watch: Called with the number of decoded image files and their total.
        shared: Loads the data for several runs, or has those that were passed from Python.

    Raises:
        UserError: The configuration cannot be run.
    """
    if config.data.name == NO_DATA:
        what = f"data.name is {NO_DATA!r}, which only a server with clients on a network can use"
        raise UserError(f"{what}; choose a data set.", code="FEDAF-DATA-NONE")
    shared = shared or SharedData()
    find_trackers(config.run.track)
    catalog.check_name(config.data.name, shared.given)
    factory = custom.find(config.model, model)
    reached("PyTorch is imported")
    engine = assembly.engine_for(config)
    reached(f"the engine is ready ({engine.name} on {engine.device})")
    method_class = METHODS.find(config.method_name)
    policy = read_policy(config.federation.policy) if config.federation.policy else None
    if policy is not None and method_class.reference and config.method_name not in policy.methods:
        raise policy.refused_method(config.method_name)
    data = shared.load(config, watch=watch)
    reached(f"the data are read ({len(data.train)} training images)")
    config = assembly.resolve_auto(config, data)
    task = assembly.task_for(config, data.train.images.shape[1:], data)
    split = Partition.reread(saved_partition, data) if saved_partition else assembly.split(config, data)
    if split.redraws:
        log.info("drew %d splits until every client had %d samples", split.redraws + 1, config.partition.min_size)
    reached("the data are split")
    architecture = assembly.architecture_for(config.model, config.run.seed, task, factory)
    config, architecture = assembly.with_starting_weights(config, task, architecture)
    validate(architecture, task, device=engine.device)
    reached("the model is checked")
    method = assembly.method_for(config, task, architecture)
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
    return assembly.method_for(config, task, Architecture(lambda key: nn.Identity()))


def execute(experiment: Experiment, out: Path, observer: Observer) -> RunResult:
    """Run an experiment in a new directory.

    Raises:
        UserError: ``out`` is not empty.
    """
    with playing(experiment, out, observer, new=True) as play:
        return play.complete()


def reopen(
    out: Path,
    *,
    model: nn.Module | Factory | None = None,
    moved: Mapping[str, Any] | None = None,
    shared: SharedData | None = None,
    rounds: int | None = None,
) -> Experiment:
    """Prepare the experiment of an earlier run, with its saved split.

    Args:
        out: The run directory.
        model: The model that was passed from Python, if it was not a name.
        moved: Settings that replace saved ones: where the data are now, and what computes.
        shared: Loads the data for several runs, or has those that were passed from Python.
        rounds: A new number of rounds in total.

    Raises:
        UserError: ``out`` is not a run directory, the data changed, or the run cannot have this number of rounds.
    """
    if not (out / CONFIG).is_file():
        what = (
            f"{out} is not the directory of a run: it has no {CONFIG}; give --resume a directory that fedaf run wrote."
        )
        raise UserError(what, code="FEDAF-RUN-NOT-FOUND")
    before = configuration.build(configuration.merge(configuration.read_toml(out / CONFIG), moved or {}))
    config = before if rounds is None else _with_rounds(before, rounds, out)
    saved = out / PARTITION
    if not saved.is_file() and checkpoint.exists(out):
        elsewhere = f"a run over a network is continued by fedaf deploy run --out {out} in the server's folder"
        raise UserError(f"{out} has no {PARTITION}; restore it, or: {elsewhere}.", code="FEDAF-RUN-NO-PARTITION")
    return prepare(config, saved_partition=saved if saved.is_file() else None, model=model, shared=shared)


def continue_run(experiment: Experiment, out: Path, observer: Observer) -> RunResult:
    """Continue the run in ``out`` after its last checkpoint; start it if it was killed before its first one.

    Raises:
        InUse: Another process is running in ``out``.
    """
    with playing(experiment, out, observer, new=False) as play:
        return play.complete()


def _with_rounds(config: Config, rounds: int, out: Path) -> Config:
    """Return the configuration of an earlier run with another number of rounds in total."""
    changed = configuration.build(configuration.merge(tomllib.loads(config.to_toml()), {"run": {"rounds": rounds}}))
    if (done := len(read_metrics(out))) > rounds:
        what = f"the run in {out} has {done} rounds already, which is more than {rounds}"
        raise UserError(f"{what}; give --rounds a larger number.", code="FEDAF-RUN-ROUNDS")
    if done and rounds != config.run.rounds and config.method.needs_rounds:
        what = f"the learning rates of the run in {out} were planned for {config.run.rounds} rounds"
        raise UserError(f"{what}; start a new run with {rounds} rounds.", code="FEDAF-RUN-ROUNDS")
    return changed


def _extend(directory: RunDirectory, rounds: int) -> None:
    """Write a new number of rounds into the configuration of a run. Its result then comes after its last round."""
    saved = assembly.config_of_run(directory.path)
    if saved.run.rounds != rounds:
        (directory.path / RESULT).unlink(missing_ok=True)
        longer = replace(saved, run=saved.run.model_copy(update={"rounds": rounds}))
        directory.write(CONFIG, longer.to_toml())


@contextmanager
def playing(
    experiment: Experiment,
    out: Path,
    observer: Observer,
    *,
    new: bool,
    through: Callable[[Transport], Transport] = lambda transport: transport,
) -> Iterator[Play]:
    """Lock the directory of a run and start the run, or resume it, inside a block.

    Args:
        experiment: What to run.
        out: The run directory.
        observer: Receives the events of the run.
        new: Whether the directory must be new.
        through: Wraps the transport, to see what clients send.
    """
    config, data, omitted = experiment.config, experiment.dataset, experiment.left_out
    if omitted is not None and (sentence := omitted.sentence(config.method_name)):
        log.info("%s", sentence)
    site = ServerSite(
        config,
        experiment.method,
        experiment.engine,
        data.test,
        data.domains,
        clients=len(experiment.partition.rows),
        classes=data.classes,
        holdings=experiment.holdings if experiment.method.privacy is None else {},  # exact counts
        selection=data.selection,
        left_out=omitted,
        ledgers=experiment.ledgers(out) if experiment.method.privacy is not None else None,
    )
    with RunDirectory.create(out) if new else RunDirectory(out) as directory, _threads(config.run.threads):
        if new:
            directory.write(CONFIG, config.to_toml())
        if not checkpoint.exists(out):
            directory.write(PARTITION, experiment.partition.to_json(data))
        reached("the run starts")
        vault = vaults(experiment.method, lambda client: Ledger(experiment.ledgers(out) / client), experiment.policy)
        transport = LocalTransport(experiment.shards, experiment.engine, experiment.admission, vault)
        with Play(site, through(transport), directory, observer) as play:
            if not new:
                _extend(directory, config.run.rounds)  # after the checkpoint was read: a damaged one changes nothing
            yield play


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Set PyTorch's number of threads inside a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
