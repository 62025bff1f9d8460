"""Small runs with differential privacy, and what looks into them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedaf import config as configuration
from fedaf.client.serving import Admission
from fedaf.client.vault import vaults
from fedaf.privacy.ledger import Ledger
from fedaf.privacy.ledger_file import LedgerEntry, read_entries
from fedaf.privacy.release import Release
from fedaf.protocol import Delivery, Listener, Phase, Policy, Replied, Request, Shard
from fedaf.protocol.payload import unpack
from fedaf.runs.experiment import Experiment, prepare
from fedaf.transports.local import LocalTransport
from support.small import Rounds, shards

PRIVACY = {"epsilon": 50.0, "networks": 2}
FEDAF = {"ipc": 2, "local_steps": 4, "server_epochs": 2}
PLUS = {"ipc": 2, "local_steps": 4, "server_steps": 8, "server_batch": 32}
OPTIONS = {"feddm": FEDAF, "fedaf": FEDAF, "fedaf-plus": PLUS}


def private_tables(
    method: str, privacy: Mapping[str, Any] | None = None, *, rounds: int | None = None, **options: Any
) -> dict[str, Any]:
    """A configuration in which two clients share the digits."""
    return {
        "data": {"name": "digits"},
        "run": {"device": "cpu", "threads": 1, **({} if rounds is None else {"rounds": rounds})},
        "model": {"width": 8, "depth": 2},
        "partition": {"alpha": 1.0, "clients": 2},
        "method": {"name": method, **OPTIONS[method], **options},
        "privacy": {**PRIVACY, **(privacy or {})},
    }


def flat(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Settings of ``fedaf.run``."""
    return {f"{table}.{key}": value for table, values in tables.items() for key, value in values.items()}


def private_experiment(
    method: str, privacy: Mapping[str, Any] | None = None, *, rounds: int | None = None, **options: Any
) -> Experiment:
    return prepare(configuration.build(private_tables(method, privacy, rounds=rounds, **options)))


class Recorded(LocalTransport):
    """Clients in this process, of which every request and every reply is kept."""

    def __init__(
        self,
        experiment: Experiment,
        ledgers: Path,
        data: Callable[[Shard], Shard] = lambda shard: shard,
        policy: Policy | None = None,
    ) -> None:
        held = {client: data(shard) for client, shard in shards(experiment).items()}
        admission = None if policy is None else Admission(policy, experiment.method, experiment.config.method_name)
        vault = vaults(experiment.method, lambda client: Ledger(ledgers / client), policy)
        super().__init__(held, experiment.engine, admission, vault)
        self.requests: list[Request] = []
        self.replies: list[Replied] = []

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        found = super().deliver(phase, requests, listener)
        self.requests += requests.values()
        self.replies += [delivery for delivery in found.values() if isinstance(delivery, Replied)]
        return found


def condensed_images(played: Rounds) -> dict[str, Tensor]:
    """What the server has of each client."""
    return {client: record.images for client, record in played.server.memory.condensed.items()}


def same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def poisoned(shard: Shard) -> Shard:
    """Other images with the same labels."""
    return replace(shard, images=255 - shard.images.roll(3, -1))


class _Untouchable:
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("a private image was touched")

    def __getitem__(self, rows: Any) -> Any:
        raise AssertionError("a private image was touched")


def untouchable(shard: Shard) -> Shard:
    """A shard whose images cannot be read; labels can."""
    return replace(shard, images=_Untouchable())  # type: ignore[arg-type]


def entries(ledgers: Path) -> dict[str, list[LedgerEntry]]:
    """The entries of each client's ledger."""
    return {folder.name: read_entries(folder) for folder in sorted(ledgers.iterdir())}


def stored_releases(ledgers: Path) -> dict[str, Release]:
    """The releases that lie in ledgers, by client and file."""
    files = sorted(ledgers.glob("*/releases/*.safetensors"))
    return {f"{file.parents[1].name}/{number}": read_release(file) for number, file in enumerate(files)}


def read_release(file: Path) -> Release:
    return Release.from_tensors(unpack(file.read_bytes())[0])
