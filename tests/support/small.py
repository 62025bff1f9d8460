"""Small federations on digits: seconds, not minutes, yet with every part of a real one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from fedaf import config as configuration
from fedaf.client.vault import vaults
from fedaf.engine import EagerEngine
from fedaf.federation.federation import Federation
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundReport, RoundRules, play_round
from fedaf.federation.run_directory import RunDirectory
from fedaf.privacy.ledger import Ledger
from fedaf.protocol import Delivery, Key, Listener, Method, Phase, Request, ServerState, Shard, Tensors, Transport
from fedaf.runs.composition import model_card
from fedaf.runs.experiment import Experiment, prepare
from fedaf.transports.local import LocalTransport

SMALL = {"rounds": 3, "alpha": 0.1, "clients": 4, "settings": {"model.width": 16, "run.device": "cpu"}}
SMALL_FEDAF = {"ipc": 5, "local_steps": 6, "real_batch": 16, "server_epochs": 4, "continue_images": True}
SMALL_PLUS = {"ipc": 5, "local_steps": 6, "real_batch": 16, "server_steps": 16, "server_batch": 32}
SMALL_CONDENSING = {"fedaf": SMALL_FEDAF, "fedaf-plus": SMALL_PLUS, "feddm": SMALL_FEDAF}


def small_experiment(method: str, *, seed: int = 0, **options: Any) -> Experiment:
    tables = {
        "data": {"name": "digits"},
        "run": {"device": "cpu", "seed": seed, "rounds": 3},
        "model": {"width": 16},
        "partition": {"alpha": 0.1, "clients": 4},
        "method": {"name": method, **options},
    }
    return prepare(configuration.build(tables))


class Rounds:
    """Rounds played by hand, one at a time, over any transport."""

    def __init__(
        self,
        experiment: Experiment,
        transport: Transport | None = None,
        rules: RoundRules | None = None,
        observer: Observer | None = None,
    ) -> None:
        self.experiment = experiment
        self.transport = transport or local(experiment)
        self.rules = rules or RoundRules()
        self.observer = observer or Observer()
        self.server: ServerState = experiment.method.initial(Key(experiment.config.run.seed))
        self.accepted: dict[str, int] = {}
        self.run = "test"

    def play(self) -> RoundReport:
        self.server, report = play_round(
            self.server,
            method=self.method,
            transport=self.transport,
            clients=list(shards(self.experiment)),
            accepted=self.accepted,
            run=self.run,
            rules=self.rules,
            engine=self.experiment.engine,
            observer=self.observer,
        )
        self.accepted |= dict.fromkeys(report.accepted, self.server.round)
        return report

    @property
    def method(self) -> Method:
        return self.experiment.method


def federation(
    experiment: Experiment, out: Path, transport: Transport | None = None, rules: RoundRules | None = None
) -> Federation:
    """A whole run of the experiment in ``out``, over any transport."""
    out.mkdir(exist_ok=True)
    return Federation(
        method=experiment.method,
        transport=transport or local(experiment),
        test=experiment.dataset.test,
        domains=experiment.dataset.domains,
        engine=experiment.engine,
        directory=RunDirectory(out),
        rules=rules or RoundRules(),
        rounds=experiment.config.run.rounds,
        card=model_card(experiment.config, experiment.method, experiment.dataset.classes),
    )


def final_tensors(out: Path) -> dict[str, Tensor]:
    """All that the last checkpoint of a run holds, but for the name the run has for its clients."""
    latest = out / (out / "LATEST").read_text()
    found = {}
    for file in ("model", "server", "clients"):
        tensors = safetensors.torch.load_file(latest / f"{file}.safetensors")
        found |= {f"{file}/{name}": t for name, t in tensors.items() if not name.endswith("/run")}
    return found


def shards(experiment: Experiment) -> dict[str, Shard]:
    return dict(experiment.partition.shards(experiment.dataset))


def local(experiment: Experiment, engine: EagerEngine | None = None, *, ledgers: Path | None = None) -> LocalTransport:
    """All clients in this process; runs with differential privacy need a folder of ledgers."""
    vault = None if ledgers is None else vaults(experiment.method, lambda client: Ledger(ledgers / client), None)
    return LocalTransport(shards(experiment), engine or experiment.engine, vault=vault)


class OneByOne:
    """A transport whose clients are each a cohort of their own, as over a network."""

    def __init__(self, inner: LocalTransport) -> None:
        self._inner = inner

    def clients(self) -> Sequence[str]:
        return self._inner.clients()

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        deliveries: dict[str, Delivery] = {}
        for name, request in requests.items():
            deliveries |= self._inner.deliver(phase, {name: request}, listener)
        return deliveries

    def checkpoint(self) -> Mapping[str, Tensors]:
        return self._inner.checkpoint()

    def restore(self, records: Mapping[str, Tensors]) -> None:
        self._inner.restore(records)
