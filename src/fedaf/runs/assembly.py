"""The parts of a run, each built from its configuration: engine, data, task, model, split."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fedaf import config as configuration
from fedaf.config import Config
from fedaf.config.tables import DataTable, ModelTable
from fedaf.data import catalog
from fedaf.data.dataset import DataSet, with_selection, with_test, with_validation
from fedaf.data.partition import Partition
from fedaf.data.registry import PARTITIONS
from fedaf.data.spec import NO_DATA, Columns, DatasetSpec, custom_spec
from fedaf.engine import EagerEngine, make_engine, resolve_device
from fedaf.federation.run_directory import CONFIG
from fedaf.methods.registry import METHODS
from fedaf.models import builtin, custom, starting_weights
from fedaf.models.custom import Factory
from fedaf.protocol import Architecture, Key, Method, Task, UserError


def engine_for(config: Config, *, device: str | None = None, short_lived: bool = False) -> EagerEngine:
    """Return the engine of a configuration.

    Args:
        config: The configuration.
        device: The device that a node's owner chose; it overrides the configuration. Without a GPU it also sets the
            engine to ``eager`` and the precision to ``fp32``.
        short_lived: For a process that serves one request: ``auto`` then means ``eager``, which needs no capture.
    """
    table = config.run
    where = resolve_device(device or table.device)
    name, precision = table.engine, table.precision
    if short_lived and name == "auto":
        name = "eager"
    if device is not None and where.type != "cuda":
        name, precision = "eager", "fp32"
    budget = table.memory_budget_mib << 20 if table.memory_budget_mib else None
    engine = make_engine(name, where, precision=precision, memory_budget=budget)
    return replace(engine, clients_at_once=table.clients_at_once)


def config_of_run(run: Path) -> Config:
    """Read the configuration that a run directory keeps."""
    return configuration.build(configuration.read_toml(run / CONFIG))


def data_for(
    config: Config,
    folder: Path,
    *,
    watch: Callable[[int, int], None] | None = None,
    entry: DatasetSpec | None = None,
    given: object = None,
) -> DataSet:
    """Load the data of a configuration from ``folder``, with ``data.test`` and ``data.validation`` applied.

    ``given`` are the data that were given from Python, if ``data.name`` says so.
    """
    table = config.data
    data = catalog.load(
        table.name,
        folder,
        image_size=table.image_size,
        max_unreadable=table.max_unreadable,
        progress=watch,
        spec=entry,
        columns=columns_of(table),
        given=given,
        needs_test=table.test is None,
    )
    if table.test is not None:
        data = with_test(data, catalog.load(table.test, folder, image_size=table.image_size, progress=watch))
    data = data if table.validation is None else with_validation(data, table.validation)
    return data if table.selection is None else with_selection(data, table.selection)


def columns_of(table: DataTable) -> Columns:
    """Return the columns that the ``[data]`` table names."""
    return Columns(table.image_column, table.label_column, table.client_column, table.domain_column)


class SharedData:
    """Loads data as ``data_for`` does, but only once for runs with the same ``[data]`` table.

    Args:
        given: The data that were passed from Python, if ``data.name`` says so.
    """

    def __init__(self, given: object = None) -> None:
        self.given = given
        self._loaded: dict[str, DataSet] = {}

    def load(self, config: Config, *, watch: Callable[[int, int], None] | None = None) -> DataSet:
        """Return the data of a configuration."""
        table = config.data.model_dump_json()
        if table not in self._loaded:
            self._loaded[table] = data_for(config, Path(config.data.dir), watch=watch, given=self.given)
        return self._loaded[table]


def spec_for(config: Config) -> DatasetSpec:
    """Return the shape and classes of a configuration's data without loading them, as sites of a network need.

    Raises:
        UserError: The configuration has too little or contradictory information about its data.
    """
    table = config.data
    known = catalog.find_spec(table.name)
    if known is not None:
        if table.shape is not None or table.classes is not None:
            what = f"data.shape and data.classes are for custom data only; remove them for {table.name}."
            raise UserError(what, code="FEDAF-DATA-SHAPE")
        if known.resized and table.image_size is not None:
            return replace(known, shape=(known.shape[0], table.image_size, table.image_size))
        return known
    if table.shape is None or table.classes is None:
        what = f"data.name is {table.name!r}, so clients on a network do not know the shape and classes"
        remedy = 'set data.shape ([C, H, W]) and data.classes (["cat", "dog"])'
        raise UserError(f"{what}; {remedy}.", code="FEDAF-DATA-SHAPE")
    if table.name == NO_DATA and table.validation is not None:
        what = "data.validation needs images on the server, and this one has none; remove it."
        raise UserError(what, code="FEDAF-DATA-VALIDATION")
    if table.name == NO_DATA and table.selection is not None:
        what = "data.selection needs images on the server, and this one has none; remove it."
        raise UserError(what, code="FEDAF-DATA-SELECTION")
    if len(set(table.classes)) != len(table.classes):
        raise UserError("data.classes names a class twice; use every name once.", code="FEDAF-DATA-CLASSES")
    channels, height, width = table.shape
    return custom_spec((channels, height, width), tuple(table.classes))


def task_for(config: Config, shape: Sequence[int], data: DataSet | DatasetSpec) -> Task:
    """Return the task for data of this shape.

    Args:
        config: The configuration; its ``data.mean`` and ``data.std`` override those of ``data``.
        shape: Channels, height and width.
        data: The data or their specification, with the number of classes and the normalisation.

    Raises:
        UserError: The number of values does not match the channels, or a standard deviation is not positive.
    """
    channels, height, width = shape
    table, augment = config.data, tuple(config.training.augment)
    mean = tuple(data.mean if table.mean is None else table.mean)
    std = tuple(data.std if table.std is None else table.std)
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        what = f"data.mean has {len(mean)} values and data.std {len(std)}"
        expected = f"expected {channels} of each for {table.name}, one per channel, with std above 0"
        raise UserError(f"{what}; {expected}.", code="FEDAF-DATA-NORMALISATION")
    return Task(table.name, channels, height, width, data.num_classes, mean, std, augment)


def architecture_for(table: ModelTable, seed: int, task: Task, factory: Factory | None) -> Architecture:
    """Return the network to train; ``factory`` makes a custom one, with the random numbers of the run's seed."""
    key = Key(seed).derive("factory")
    if factory is None:
        return builtin.architecture(table.name, task, table, table.classifier)
    return custom.architecture(
        factory,
        task,
        key,
        name=table.name,
        classifier=table.classifier,
        keep_weights=table.keep_weights,
        output=table.output,
    )


def method_for(config: Config, task: Task, architecture: Architecture) -> Method:
    """Return the method of a configuration."""
    method = METHODS.find(config.method_name)
    if config.privacy.epsilon is None:  # the constructors of custom methods need not know of it
        return method(config.method, task, architecture)
    return method(config.method, task, architecture, config.privacy)


def with_starting_weights(config: Config, task: Task, architecture: Architecture) -> tuple[Config, Architecture]:
    """Return the architecture with the weights of ``model.weights``, and the configuration with their SHA-256.

    Without ``model.weights`` both stay as they are.

    Raises:
        UserError: The file cannot be read, is not the one that the configuration names, or does not fit the model.
    """
    table = config.model
    if table.weights is None:
        return config, architecture
    file = Path(table.weights)
    weights, digest = starting_weights.read(file, table.weights_sha256)
    trained = starting_weights.start_from(weights, architecture, task, file=file, name=table.name)
    return replace(config, model=table.model_copy(update={"weights_sha256": digest})), trained


def resolve_auto(config: Config, data: DataSet) -> Config:
    """Return the configuration with ``auto`` replaced by the kind of split that fits the data."""
    kind = configuration.split_kind(config, has_clients=len(data.clients) > 1, has_domains=len(data.domains) > 1)
    return replace(config, partition=config.partition.model_copy(update={"kind": kind}))


def split(config: Config, data: DataSet) -> Partition:
    """Split the data over clients, for a configuration without ``auto``.

    Raises:
        UserError: The data cannot be split this way.
    """
    key = Key(config.run.seed).derive("partition")
    return PARTITIONS.find(config.partition.kind).split(data, config.partition, key)
