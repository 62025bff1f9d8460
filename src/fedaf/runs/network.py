"""The server's side of a run over a network: a new one, or one that goes on where it was stopped."""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from fedaf.config import Config
from fedaf.runs.experiment import figures_of, must_fit
from fedaf.federation.checkpoint import LATEST, Checkpoint
from fedaf.federation.federation import Federation
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundRules
from fedaf.federation.run_directory import CONFIG, RESULT, RunDirectory, read_metrics
from fedaf.protocol.transport import Transport
from fedaf.protocol import Key, UserError
from fedaf.reporting import tables
from fedaf.runs.sites import ServerSite, read_config, server_site

log = logging.getLogger(__name__)

_DEADLINE = 3600.0  # seconds of a phase, where the configuration has none: over a network nobody is waited for for ever


class Log(Observer):
    """Rounds and phases as lines of the log."""

    def round_started(self, round: int) -> None:
        log.info("round %d", round)

    def phase_started(self, name: str, clients: int) -> None:
        log.info("phase %s, %s", name, f"{clients} clients" if clients else "here")

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        accuracy = metrics["accuracy"]
        log.info(
            "round %d: accuracy %s; beside work %s",
            metrics["round"],
            "unknown, as no client has test data" if accuracy is None else tables.per_cent(accuracy),
            tables.overhead(metrics.get("overhead", {})) or "nothing",
        )


def play(config_text: str, out: str, connect: Callable[..., Transport]) -> None:
    """Run the federation of a configuration in the directory ``out``, or go on with the run that is there."""
    config = read_config(config_text)
    if not out:
        raise UserError("the run config has no 'out', the server's directory for this run; give one.")
    torch.set_num_threads(config.run.threads or torch.get_num_threads())
    site, path = server_site(config), Path(out)
    with closing(_directory(path, site.config)) as directory:
        table = config.federation
        federation = Federation(
            method=site.method,
            transport=connect(min_clients=table.min_clients, wait=table.wait),
            test=site.test,
            domains=site.domains,
            engine=site.engine,
            directory=directory,
            terms=RoundRules(table.participation, table.quorum, table.deadline or _DEADLINE),
            rounds=config.run.rounds,
            keep_checkpoints=config.run.keep_checkpoints,
        )
        begun = _begin(federation, site, path)
        federation.run(begun, Log())
        _finish(site, directory)


def _directory(path: Path, config: Config) -> RunDirectory:
    """A new one, or that of the same run as it was stopped."""
    if not (path / CONFIG).is_file():
        directory = RunDirectory.create(path)
        directory.write(CONFIG, config.to_toml())
        return directory
    if (path / CONFIG).read_text() != config.to_toml():
        raise UserError(f"{path} holds a run with other settings; give the settings of its {CONFIG}, or another 'out'.")
    return RunDirectory(path)


def _begin(federation: Federation, site: ServerSite, path: Path) -> Checkpoint:
    if not (path / LATEST).exists():
        return federation.start(Key(site.config.run.seed))
    begun = federation.resume()
    must_fit(site.method, begun.server.model, path, name=site.config.model.name)
    if begun.server.round >= site.config.run.rounds:
        log.info("the run in %s is finished: all its %d rounds are played", path, begun.server.round)
    else:
        log.info("going on with the run in %s after round %d", path, begun.server.round)
    return begun


def _finish(site: ServerSite, directory: RunDirectory) -> None:
    rounds = read_metrics(directory.path)
    clients = {client for metrics in rounds for client in metrics["asked"]}
    figures = figures_of(site.config, site.engine, len(clients), rounds)
    directory.write(RESULT, json.dumps(figures, indent=2) + "\n")
    log.info("best accuracy %s", tables.per_cent(figures["best_accuracy"]))
    if sentence := tables.overhead_sentence(figures):
        log.info("%s", sentence)
    log.info("the run is in %s", directory.path)
