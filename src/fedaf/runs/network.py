"""The server's side of a run over a network."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedaf.config import Config
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import CONFIG, RunDirectory
from fedaf.protocol import Transport, UserError
from fedaf.reporting import tables
from fedaf.runs import composition
from fedaf.runs.sites import read_config, server_site

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
        log.info(
            "round %d: accuracy %s; overhead %s",
            metrics["round"],
            "unknown, because no client has test data" if accuracy is None else tables.per_cent(accuracy),
            tables.overhead(metrics.get("overhead", {})) or "none",
        )


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
    with RunDirectory(path) if (path / CONFIG).is_file() else RunDirectory.create(path) as directory:
        torch.set_num_threads(config.run.threads or torch.get_num_threads())
        site = server_site(config)
        _keep_config(directory, site.config)
        transport = connect(min_clients=config.federation.min_clients, wait=config.federation.wait)
        result = composition.play(site, transport, directory, Log(), deadline=_DEADLINE)
    log.info("best accuracy %s", tables.per_cent(result.figures["best_accuracy"]))
    if sentence := tables.overhead_sentence(result.figures):
        log.info("%s", sentence)
    log.info("the run is in %s", path)


def _keep_config(directory: RunDirectory, config: Config) -> None:
    """Write the configuration of a new run; refuse one that differs from that of the run to resume."""
    saved = directory.path / CONFIG
    if not saved.is_file():
        directory.write(CONFIG, config.to_toml())
    elif saved.read_text() != config.to_toml():
        raise UserError(
            f"{directory.path} holds a run with other settings; use the settings of its {CONFIG}, or another 'out'.",
            code="FEDAF-RUN-OTHER-SETTINGS",
        )
