"""The two sides of a run over a network, from its configuration.

The server loads only its test set, if it has one; a client loads only its own data.
"""

import time
import tomllib
from pathlib import Path
from typing import Any

import torch

from fedaf import config as configuration
from fedaf.client.serving import Admission, ClientSite
from fedaf.config import Config
from fedaf.config.policies import DEFAULT_POLICY, read_policy
from fedaf.data import catalog
from fedaf.data.dataset import DataSet
from fedaf.data.spec import NO_DATA, DatasetSpec
from fedaf.engine import EagerEngine
from fedaf.methods.registry import METHODS
from fedaf.models import custom
from fedaf.models.validation import validate
from fedaf.protocol import Method, Policy, Refused, Shard, UserError
from fedaf.runs import assembly
from fedaf.runs.composition import ServerSite
from fedaf.transports.flower.node import Node

_PARTITION = "partition"


def read_config(text: str) -> Config:
    """Read the configuration of a run from its TOML text.

    Raises:
        UserError: The text is not a valid configuration.
    """
    return configuration.build(_tables(text))


def server_site(config: Config) -> ServerSite:
    """Return the server's side of a run: the method, and the test set if the configuration names data.

    Raises:
        UserError: The configuration cannot be run.
    """
    entry, engine = assembly.spec_for(config), assembly.engine_for(config)
    method = _method(config, entry, engine)
    if config.data.name == NO_DATA:
        return ServerSite(config, method, engine, None, ())
    own = None if catalog.find_spec(config.data.name) else entry
    data = assembly.data_for(config, Path(config.data.dir), entry=own)
    return ServerSite(assembly.resolve_auto(config, data), method, engine, data.test, data.domains)


def client_site(node: Node, text: str) -> ClientSite:
    """Return a client's side of a run. No code that the server names is loaded unless the node's owner allows it.

    Args:
        node: The node's config.
        text: The server's configuration as TOML.

    Raises:
        Refused: The policy or the node's config does not allow the method or other code that the server names.
        UserError: The configuration or the node's data are wrong.
    """
    policy = read_policy(node.policy or DEFAULT_POLICY)
    tables = _tables(text)
    _check_allowed(node, policy, tables)
    config = configuration.build(tables)
    torch.set_num_threads(node.threads or config.run.threads or torch.get_num_threads())
    started = time.monotonic()
    entry = assembly.spec_for(config)
    shard = _shard_of_split(node, config) if node.data.startswith(_PARTITION) else _shard_of_node(node, config, entry)
    opened = time.monotonic()
    engine = assembly.engine_for(config, device=node.device, short_lived=True)
    method = _method(config, entry, engine)
    seconds = {"data": opened - started, "model": time.monotonic() - opened}
    return ClientSite(shard, method, engine, Admission(policy, method, config.method_name), seconds)


def _tables(text: str) -> dict[str, Any]:
    if not text.strip():
        raise UserError(
            "the run config has no 'config'; set it to the TOML text of a configuration.", code="FEDAF-RUN-CONFIG"
        )
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(
            f"the 'config' of the run config is not valid TOML: {error}.", code="FEDAF-RUN-CONFIG"
        ) from error


def _check_allowed(node: Node, policy: Policy, tables: dict[str, Any]) -> None:
    """Refuse names of code that does not ship with fedaf, unless the node's owner allows them."""
    method = _name(tables, "method")
    if method is not None and method not in policy.methods:
        raise policy.refused_method(method)
    for path, name in configuration.custom_names(tables):
        if path == "model.name" and name != node.model:
            raise Refused(
                f"the run trains the model {name[:80]}, which this node's config does not name as its 'model'",
                code="FEDAF-POLICY-MODEL",
            )
        if path not in ("method.name", "model.name"):
            raise Refused(
                f"the run sets {path} to {name[:80]}, which is not part of fedaf; clients load no such code",
                code="FEDAF-POLICY-CODE",
            )


def _name(tables: dict[str, Any], table: str, key: str = "name") -> str | None:
    found = tables.get(table)
    name = found.get(key) if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def _method(config: Config, entry: DatasetSpec, engine: EagerEngine) -> Method:
    factory = custom.find(config.model.name, None, keep_weights=config.model.keep_weights)
    task = assembly.task_for(config, entry.shape, entry.num_classes, entry.mean, entry.std)
    architecture = assembly.architecture_for(config, task, factory)
    if factory is not None:
        validate(architecture, task, device=engine.device)
    return METHODS.find(config.method_name)(config.method, task, architecture)


def _shard_of_split(node: Node, config: Config) -> Shard:
    """Return the data of one client of the run's own split, as in an experiment in one process."""
    if config.data.name == NO_DATA:
        raise UserError(
            f"data is {node.data} in the node config, but the run has no data to split; use npz:FILE or folder:DIR.",
            code="FEDAF-NODE-DATA",
        )
    data = assembly.data_for(config, node.data_dir)
    shards = assembly.split(assembly.resolve_auto(config, data), data).shards(data)
    number = int(node.data.partition(":")[2])
    if number >= len(shards):
        raise UserError(
            f"data is {node.data} in the node config; expected partition:0 to partition:{len(shards) - 1}.",
            code="FEDAF-NODE-DATA",
        )
    return shards[list(shards)[number]]


def _shard_of_node(node: Node, config: Config, entry: DatasetSpec) -> Shard:
    data = catalog.load(node.data, node.data_dir, max_unreadable=config.data.max_unreadable, spec=entry)
    if entry.classes and data.classes != entry.classes:
        raise UserError(
            f"{node.data} has the classes {', '.join(data.classes)}, but the run has {', '.join(entry.classes)}; "
            "use the class names of the run, in the same order.",
            code="FEDAF-NODE-CLASSES",
        )
    return _shard(data, entry)


def _shard(data: DataSet, entry: DatasetSpec) -> Shard:
    test = Shard(data.test.images, data.test.labels, entry.num_classes)
    return Shard(data.train.images.contiguous(), data.train.labels, entry.num_classes, test)
