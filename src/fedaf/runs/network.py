"""The two sides of a run over a network, from its configuration.

The server loads only its test set, if it has one; a client loads only its own data.
"""

import logging
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedaf import config as configuration
from fedaf.client.serving import Admission, ClientSite
from fedaf.config import Config
from fedaf.config.policies import DEFAULT_POLICY, read_policy
from fedaf.data import catalog
from fedaf.data.spec import NO_DATA, DatasetSpec
from fedaf.engine import EagerEngine
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import CONFIG, RunDirectory
from fedaf.federation.trackers.registry import find_trackers
from fedaf.methods.registry import FEDERATED, METHODS
from fedaf.models import custom
from fedaf.models.validation import validate
from fedaf.protocol import Method, Policy, Refused, Shard, Transport, UserError
from fedaf.reporting import tables
from fedaf.runs import assembly
from fedaf.runs.composition import Play, ServerSite
from fedaf.transports.flower.node import Node

log = logging.getLogger(__name__)

_DEADLINE = 3600.0  # seconds of a phase if the configuration sets none: over a network no wait is endless


class Log(Observer):
    """Writes rounds and phases to the log, for people. Programs read ``events.jsonl``."""

    def round_started(self, round: int) -> None:
        log.info("round %d", round)

    def phase_started(self, name: str, clients: int) -> None:
        log.info("phase %s, %s", name, f"{clients} clients" if clients else "here")

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        accuracy = metrics["accuracy"]
        unknown = "unknown, because no client has test data, or clients do not tell (differential privacy)"
        shown = unknown if accuracy is None else tables.per_cent(accuracy)
        overhead = tables.overhead(metrics.get("overhead", {})) or "none"
        log.info("round %d: accuracy %s; overhead %s", metrics["round"], shown, overhead)


def read_config(text: str) -> Config:
    """Read the configuration of a run from its TOML text.

    Raises:
        UserError: The text is not a valid configuration.
    """
    return configuration.build(_parsed(text))


def server_site(config: Config) -> ServerSite:
    """Return the server's side of a run: the method, and the test set if the configuration names data.

    Raises:
        UserError: The configuration cannot be run.
    """
    refuse_reference(config)
    find_trackers(config.run.track)
    entry, engine = assembly.spec_for(config), assembly.engine_for(config)
    config, method = _server_method(config, entry, engine)
    if config.data.name == NO_DATA:
        return ServerSite(config, method, engine, None, (), classes=entry.classes)
    own = None if catalog.find_spec(config.data.name) else entry
    data = assembly.data_for(config, Path(config.data.dir), entry=own)
    return ServerSite(
        config=assembly.resolve_auto(config, data),
        method=method,
        engine=engine,
        test=data.test,
        domains=data.domains,
        classes=data.classes,
        selection=data.selection,
    )


def refuse_reference(config: Config) -> None:
    """Check that a configuration may run over a network, whatever the clients' policies say.

    Raises:
        UserError: Its method is a reference for comparisons, such as ``pooled``, which would need raw data.
    """
    name = config.method_name
    if METHODS.find(name).reference:
        what = f"the method {name} is a reference for comparisons in one process, and no federated method"
        raise UserError(f"{what}; choose one of {', '.join(FEDERATED)}.", code="FEDAF-METHOD-REFERENCE")


def play(config_text: str, out: str, connect: Callable[..., Transport]) -> None:
    """Start the run of a configuration in a directory, or resume it there.

    Args:
        config_text: The configuration as TOML.
        out: The run directory.
        connect: Makes the transport from ``min_clients`` and ``wait``.

    Raises:
        UserError: The configuration is wrong, or ``out`` holds another run.
        BelowQuorum: Too few clients connected or replied. The run can be resumed.
    """
    config = read_config(config_text)
    if not out:
        raise UserError("the run config has no 'out'; set it to the run's directory.", code="FEDAF-RUN-NO-DIRECTORY")
    path = Path(out)
    saved = path / CONFIG
    with RunDirectory(path) if saved.is_file() else RunDirectory.create(path) as directory:
        torch.set_num_threads(config.run.threads or torch.get_num_threads())
        site = server_site(config)
        if not saved.is_file():
            directory.write(CONFIG, site.config.to_toml())
        elif _text_of(configuration.build(configuration.read_toml(saved))) != _text_of(site.config):
            what = f"{path} holds a run with other settings; use the settings of its {CONFIG}, or another 'out'."
            raise UserError(what, code="FEDAF-RUN-OTHER-SETTINGS")
        transport = connect(min_clients=config.federation.min_clients, wait=config.federation.wait)
        with Play(site, transport, directory, Log(), deadline=_DEADLINE) as running:
            result = running.complete()
    log.info("best test round: accuracy %s", tables.per_cent(result.figures["best_accuracy"]))
    if sentence := tables.overhead_sentence(result.figures):
        log.info("%s", sentence)
    log.info("the run is in %s", path)


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
    given = _parsed(text)
    if isinstance(given.get("run"), dict):
        given["run"].pop("track", None)  # trackers are the server's; a client loads none
    _check_allowed(node, policy, given)
    config = configuration.build(given)
    refuse_reference(config)
    torch.set_num_threads(node.threads or config.run.threads or torch.get_num_threads())
    started = time.monotonic()
    entry = assembly.spec_for(config)
    shard = _shard_of_split(node, config) if node.data.startswith("partition") else _shard(node, config, entry)
    opened = time.monotonic()
    engine = assembly.engine_for(config, device=node.device, short_lived=True)
    method = _method(config, entry, engine)
    seconds = {"data": opened - started, "model": time.monotonic() - opened}
    return ClientSite(shard, method, engine, Admission(policy, method, config.method_name), seconds)


def _text_of(config: Config) -> str:
    """Return the settings that a run must keep when it is resumed."""
    return config.untracked().to_toml()


def _parsed(text: str) -> dict[str, Any]:
    try:
        if not text.strip():
            raise ValueError("it is empty")
        return tomllib.loads(text)
    except ValueError as error:
        what = f"the 'config' of the run config is not the TOML text of a configuration: {error}."
        raise UserError(what, code="FEDAF-RUN-CONFIG") from error


def _check_allowed(node: Node, policy: Policy, given: dict[str, Any]) -> None:
    """Refuse names of code that does not ship with fedaf, unless the node's owner allows them."""
    table = given.get("method")
    method = table.get("name") if isinstance(table, dict) else None
    if isinstance(method, str) and method not in policy.methods:
        raise policy.refused_method(method)
    for path, name in configuration.custom_names(given):
        if path == "model.name" and name != node.model:
            what = f"the run trains the model {name[:80]}, which this node's config does not name as its 'model'"
            raise Refused(what, code="FEDAF-POLICY-MODEL")
        if path not in ("method.name", "model.name"):
            what = f"the run sets {path} to {name[:80]}, which is not part of fedaf; clients load no such code"
            raise Refused(what, code="FEDAF-POLICY-CODE")


def _method(config: Config, entry: DatasetSpec, engine: EagerEngine) -> Method:
    """Return the method of a run. ``model.weights`` is a file of the server, which sends the model to the clients."""
    factory = custom.find(config.model, None)
    task = assembly.task_for(config, entry.shape, entry)
    architecture = assembly.architecture_for(config.model, config.run.seed, task, factory)
    if factory is not None:
        validate(architecture, task, device=engine.device)
    return assembly.method_for(config, task, architecture)


def _server_method(config: Config, entry: DatasetSpec, engine: EagerEngine) -> tuple[Config, Method]:
    """Return the server's method, which starts from ``model.weights``, and the configuration with their SHA-256."""
    method = _method(config, entry, engine)
    if config.model.weights is not None and method.evaluation is not None:
        what = f"clients of {config.method_name} keep a part of the model that the server never sends"
        advice = "so model.weights cannot reach it over a network; leave model.weights out"
        raise UserError(f"{what}, {advice}.", code="FEDAF-MODEL-WEIGHTS-PERSONAL")
    config, architecture = assembly.with_starting_weights(config, method.task, method.architecture)
    return config, assembly.method_for(config, method.task, architecture)


def _shard_of_split(node: Node, config: Config) -> Shard:
    """Return the data of one client of the run's own split, as in an experiment in one process."""
    if config.data.name == NO_DATA:
        what = f"data is {node.data} in the node config, but the run has no data to split"
        raise UserError(f"{what}; use npz:FILE, folder:DIR or parquet:DIR.", code="FEDAF-NODE-DATA")
    data = assembly.data_for(config, node.data_dir)
    shards = assembly.split(assembly.resolve_auto(config, data), data).shards(data)
    number = int(node.data.partition(":")[2])
    if number >= len(shards):
        what = f"data is {node.data} in the node config; expected partition:0 to partition:{len(shards) - 1}."
        raise UserError(what, code="FEDAF-NODE-DATA")
    return shards[list(shards)[number]]


def _shard(node: Node, config: Config, entry: DatasetSpec) -> Shard:
    data = catalog.load(node.data, node.data_dir, max_unreadable=config.data.max_unreadable, spec=entry)
    if entry.classes and data.classes != entry.classes:
        what = f"{node.data} has the classes {', '.join(data.classes)}, but the run has {', '.join(entry.classes)}"
        raise UserError(f"{what}; use the class names of the run, in the same order.", code="FEDAF-NODE-CLASSES")
    test = Shard(data.test.images, data.test.labels, entry.num_classes)
    return Shard(data.train.images.contiguous(), data.train.labels, entry.num_classes, test)
