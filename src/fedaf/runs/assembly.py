"""The parts of a run, each from its configuration: what an experiment in one process and the sites of a federation over
a network have in common."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedaf import config as configuration
from fedaf.config import Config
from fedaf.data import catalog, partition
from fedaf.data.dataset import DataSet, with_validation
from fedaf.data.entries import CATALOG, NO_DATA, DatasetSpec, custom_spec
from fedaf.data.partition import Partition
from fedaf.engine import EagerEngine, make_engine, resolve_device
from fedaf.models import custom as own
from fedaf.models import registry as models
from fedaf.models.custom import Factory
from fedaf.protocol import Architecture, Key, Task, UserError


def engine_for(config: Config, *, device: str | None = None, short_lived: bool = False) -> EagerEngine:
    """The engine a configuration asks for. A ``short_lived`` process compiles only where it is told to; ``device`` is
    the word of a node's owner, which wins: where it is no GPU, so do the engine and the precision that any has."""
    table = config.run
    where = resolve_device(device or table.device)
    name, precision = table.engine, table.precision
    if short_lived and name == "auto":
        name = "eager"
    if device is not None and where.type != "cuda":
        name, precision = "eager", "fp32"
    budget = table.memory_budget_mib << 20 if table.memory_budget_mib else None
    return make_engine(name, where, precision=precision, memory_budget=budget)


def data_for(
    config: Config, folder: Path, *, watch: Callable[[int, int], None] | None = None, entry: DatasetSpec | None = None
) -> DataSet:
    """The data a configuration names, from ``folder``, with its ``validation`` held out (see ``catalog.load``)."""
    table = config.data
    data = catalog.load(
        table.name,
        folder,
        image_size=table.image_size,
        max_unreadable=table.max_unreadable,
        watch=watch,
        entry=entry,
    )
    return data if table.validation is None else with_validation(data, table.validation)


def spec_for(config: Config) -> DatasetSpec:
    """What a configuration tells of its data before anyone opens any: all that sites of a network share."""
    table = config.data
    known = CATALOG.get(table.name)
    if known is not None:
        for key in ("shape", "classes"):
            if getattr(table, key) is not None:
                raise UserError(f"data.{key} is for data that are not of the catalog; leave it out for {table.name}.")
        if known.resized and table.image_size is not None:
            return replace(known, shape=(known.shape[0], table.image_size, table.image_size))
        return known
    if table.shape is None or table.classes is None:
        raise UserError(
            f"data.name is {table.name!r}, so clients on a network cannot know what is to be learned; give data.shape "
            '([C, H, W]) and data.classes (["cat", "dog"]).'
        )
    if table.name == NO_DATA and table.validation is not None:
        raise UserError("data.validation holds out images of the server, which has none here; leave it out.")
    if len(set(table.classes)) != len(table.classes):
        raise UserError("data.classes names a class twice; give every name once.")
    channels, height, width = table.shape
    return custom_spec((channels, height, width), tuple(table.classes))


def task_for(
    config: Config, shape: Sequence[int], num_classes: int, mean: tuple[float, ...], std: tuple[float, ...]
) -> Task:
    """The task of data of this shape; ``mean`` and ``std`` are theirs where the configuration has none."""
    channels, height, width = shape
    mean, std = (
        tuple(own if own is not None else known) for own, known in ((config.data.mean, mean), (config.data.std, std))
    )
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise UserError(
            f"data.mean has {len(mean)} values and data.std {len(std)}; {config.data.name} needs {channels} of each, "
            "one a channel, with std above 0."
        )
    return Task(config.data.name, channels, height, width, num_classes, mean, std, tuple(config.training.augment))


def architecture_for(config: Config, task: Task, factory: Factory | None) -> Architecture:
    """The network to train; ``factory`` makes one of one's own."""
    table = config.model
    if factory is None:
        build = partial(models.build, table.name, task, depth=table.depth, width=table.width, norm=table.norm)
        return Architecture(build, table.classifier)
    return own.architecture(
        factory,
        task,
        Key(config.run.seed).derive("factory"),
        name=table.name,
        classifier=table.classifier,
        keep_weights=table.keep_weights,
    )


def resolve_auto(config: Config, data: DataSet) -> Config:
    """The configuration with what only the data could decide."""
    kind = configuration.split_kind(config, has_domains=len(data.domains) > 1)
    return replace(config, partition=config.partition.model_copy(update={"kind": kind}))


def split(config: Config, data: DataSet) -> Partition:
    """Who holds what, for a configuration without ``auto``."""
    table, key = config.partition, Key(config.run.seed).derive("partition")
    labels = data.train.labels.numpy()
    if table.kind == "file":
        if table.path is None:
            raise UserError("partition.kind = 'file' needs partition.path, a partition.json of an earlier run.")
        return Partition.read(Path(table.path), len(labels))
    if table.kind == "domain":
        if data.train.domains is None:
            raise UserError(
                f"partition.kind = 'domain' needs data with domains, and {data.name} has none; use another."
            )
        return partition.by_domain(data.train.domains.numpy(), data.domains)
    if table.kind == "iid":
        return partition.iid(labels, table.clients, key)
    if table.kind == "shards":
        return partition.shards_per_client(labels, table.clients, table.shards_per_client, key)
    return partition.dirichlet(
        labels,
        table.clients,
        alpha=table.alpha,
        key=key,
        min_size=table.min_size,
        max_redraws=table.max_redraws,
    )
