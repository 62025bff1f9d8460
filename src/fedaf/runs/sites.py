"""What the server and each client of a federation over a network make of the run's configuration. The server opens its
test set only, if it has one, and a client its own data only."""

import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedaf.runs import assembly
from fedaf import config as configuration
from fedaf.config import Config
from fedaf.config.policies import DEFAULT_POLICY, read_policy
from fedaf.data import catalog
from fedaf.data.dataset import DataSet, Split
from fedaf.data.entries import CATALOG, NO_DATA, DatasetSpec
from fedaf.engine import EagerEngine
from fedaf.client.serving import Admission, Site
from fedaf.methods.registry import METHODS
from fedaf.models import registry as models
from fedaf.models.validation import validate
from fedaf.protocol import Method, Policy, Refused, Shard, UserError
from fedaf.transports.flower.node import Node

_PARTITION = "partition"


@dataclass(frozen=True)
class ServerSite:
    """``test`` is ``None`` where the test data are with the clients."""

    config: Config
    method: Method
    engine: EagerEngine
    test: Split | None
    domains: Sequence[str]


def read_config(text: str) -> Config:
    """The configuration of a run from its TOML text."""
    return configuration.build(_tables(text))


def server_site(config: Config) -> ServerSite:
    entry, engine = assembly.spec_for(config), assembly.engine_for(config)
    method = _method(config, entry, engine)
    if config.data.name == NO_DATA:
        return ServerSite(config, method, engine, None, ())
    own = None if config.data.name in CATALOG else entry
    data = assembly.data_for(config, Path(config.data.dir), entry=own)
    return ServerSite(assembly.resolve_auto(config, data), method, engine, data.test, data.domains)


def client_site(node: Node, text: str) -> Site:
    """The client of a node in the run of a server's configuration. Nothing that the server names is loaded before the
    node's owner has agreed to it."""
    policy = read_policy(node.policy or DEFAULT_POLICY)
    tables = _tables(text)
    _agree(node, policy, tables)
    config = configuration.build(tables)
    torch.set_num_threads(node.threads or config.run.threads or torch.get_num_threads())
    started = time.monotonic()
    entry = assembly.spec_for(config)
    shard = _trial(node, config) if node.data.startswith(_PARTITION) else _own(node, config, entry)
    opened = time.monotonic()
    engine = assembly.engine_for(config, device=node.device, short_lived=True)
    method = _method(config, entry, engine)
    seconds = {"data": opened - started, "model": time.monotonic() - opened}
    return Site(shard, method, engine, Admission(policy, method, config.method_name), seconds)


def _tables(text: str) -> dict[str, Any]:
    if not text.strip():
        raise UserError("the run config has no 'config', the TOML text of a configuration; give one.")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"the 'config' of the run config is not valid TOML: {error}.") from error


def _agree(node: Node, policy: Policy, tables: dict[str, Any]) -> None:
    """Names such as ``module:Class`` are code that a server would have a client load: only where its owner said so."""
    method = _name(tables, "method")
    if method is not None and method not in policy.methods:
        raise Refused(f"the policy admits the methods {', '.join(policy.methods) or 'none'}, not {method[:80]}")
    for path, name in configuration.custom_names(tables):
        if path == "model.name" and name != node.model:
            raise Refused(
                f"the run trains the model {name[:80]}, which this node's config does not name as its 'model'"
            )
        if path not in ("method.name", "model.name"):
            raise Refused(
                f"the run sets {path} to {name[:80]}, which is not part of fedaf; clients load no such code",
                code="FEDAF-POLICY-CODE",
            )


def _name(tables: dict[str, Any], table: str) -> str | None:
    found = tables.get(table)
    name = found.get("name") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


def _method(config: Config, entry: DatasetSpec, engine: EagerEngine) -> Method:
    factory = models.find(config.model.name, None, keep_weights=config.model.keep_weights)
    task = assembly.task_for(config, entry.shape, entry.num_classes, entry.mean, entry.std)
    architecture = assembly.architecture_for(config, task, factory)
    if factory is not None:
        validate(architecture, task, device=engine.device)
    return METHODS.find(config.method_name)(config.method, task, architecture)


def _trial(node: Node, config: Config) -> Shard:
    """One client of the run's own split, as an experiment in one process would have it."""
    if config.data.name == NO_DATA:
        raise UserError(
            f"data is {node.data} in the node config, but the run has no data to split; give npz: or folder:."
        )
    data = assembly.data_for(config, node.data_dir)
    shards = assembly.split(assembly.resolve_auto(config, data), data).shards(data)
    number = int(node.data.partition(":")[2])
    if number >= len(shards):
        raise UserError(
            f"data is {node.data} in the node config, but the last client of the split is {len(shards) - 1}."
        )
    return shards[list(shards)[number]]


def _own(node: Node, config: Config, entry: DatasetSpec) -> Shard:
    data = catalog.load(node.data, node.data_dir, max_unreadable=config.data.max_unreadable, entry=entry)
    if entry.classes and data.classes != entry.classes:
        raise UserError(
            f"{node.data} names the classes {', '.join(data.classes)}, but those of the run are "
            f"{', '.join(entry.classes)}; number its labels as the run does."
        )
    return _shard(data, entry)


def _shard(data: DataSet, entry: DatasetSpec) -> Shard:
    test = Shard(data.test.images, data.test.labels, entry.num_classes)
    return Shard(data.train.images.contiguous(), data.train.labels, entry.num_classes, test)
