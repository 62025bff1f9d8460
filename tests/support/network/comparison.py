"""Compare a federation over a network with the same one in one process, bit for bit."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedaf import config as configuration
from fedaf.client.state import ClientState
from fedaf.client.state_folder import StateFolder
from fedaf.federation import checkpoint
from fedaf.federation.rounds import RoundRules
from fedaf.protocol import Delivery, Request, Silent, Tensors
from fedaf.protocol.records import to_tensors
from fedaf.runs.experiment import prepare
from support.faults import FaultyTransport, Tag
from support.network.loopback import Loopback
from support.small import OneByOne, Rounds, local


def tables(
    method: str, *, rounds: int, clients: int = 3, deadline: float = 90.0, quorum: float = 1.0, **options: Any
) -> dict[str, Any]:
    """Return a configuration in which clients share the digits."""
    return {
        "data": {"name": "digits"},
        "run": {"device": "cpu", "rounds": rounds, "threads": 1},
        "model": {"width": 16},
        "partition": {"alpha": 0.5, "clients": clients},
        "federation": {"quorum": quorum, "deadline": deadline, "min_clients": clients},
        "method": {"name": method, **options},
    }


def toml(given: Mapping[str, Any]) -> str:
    return configuration.build(given).to_toml()


def assert_as_in_one_process(
    given: Mapping[str, Any], out: Path, network: Loopback, *, lost: Collection[Tag] = ()
) -> None:
    """Compare the last checkpoint and the clients' stored states with the same rounds in one process.

    ``lost`` has the replies (client, round, phase) that are lost there too.
    """

    def fault(client: str, request: Request, delivery: Delivery) -> Delivery:
        return Silent() if (client, request.round, request.phase) in lost else delivery

    experiment = prepare(configuration.build(given))
    networked = checkpoint.load(out, experiment.method)
    alone = OneByOne(local(experiment, ledgers=network.folder / f"{out.name}-ledgers"))
    rounds = Rounds(experiment, FaultyTransport(alone, fault), RoundRules(quorum=experiment.config.federation.quorum))
    for _ in range(experiment.config.run.rounds):
        rounds.play()
    assert networked.server.round == experiment.config.run.rounds
    assert networked.accepted == rounds.accepted
    assert_same(networked.server.model, rounds.server.model)
    assert_same(to_tensors(networked.server.memory), to_tensors(rounds.server.memory))
    for client, tensors in alone.checkpoint().items():
        kept = StateFolder(network.folder / "state" / client / client).read(networked.run)
        assert_same(_between_rounds(kept), _between_rounds(ClientState.from_tensors(tensors)))


def assert_same(actual: Tensors, expected: Tensors) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


def _between_rounds(state: ClientState) -> Tensors:
    """Return a client's state without what differs between runs: the run's name, and what was sent in earlier ones."""
    return replace(state.between_rounds(), run="", images_sent={}).to_tensors()
