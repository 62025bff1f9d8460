"""Differential privacy over a real network: the numbers of one process, and ledgers at the nodes that outlive runs."""

from pathlib import Path

import pytest

from fedaf.config.policies import policy_toml
from fedaf.privacy.ledger_file import read_entries
from fedaf.protocol import Policy
from fedaf.transports.flower.client import LEDGER_FOLDER
from support.network.comparison import assert_as_in_one_process, tables, toml
from support.network.loopback import loopback
from support.small import SMALL_FEDAF

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]

PRIVACY = {"epsilon": 50.0, "networks": 2}
CLIENTS = ("client-0", "client-1")


def test_nodes_release_once_keep_their_ledgers_and_refuse_a_run_over_their_budget(tmp_path, call):
    folder = tmp_path / "network"
    folder.mkdir()
    policy = folder / "policy.toml"
    policy.write_text(policy_toml(Policy(methods=["feddm"])))
    given = tables("feddm", rounds=2, clients=2, **{**SMALL_FEDAF, "local_steps": 10, "ipc": 2})
    with loopback(folder, {client: {"policy": str(policy)} for client in CLIENTS}) as network:
        simulated, out = given | {"privacy": {**PRIVACY, "simulate_seed": 3}}, folder / "simulated"
        network.finish(toml(simulated), out)
        assert_as_in_one_process(simulated, out, network)
        for client in CLIENTS:
            assert len(read_entries(ledger_of(folder, client))) == 1  # of two rounds
            code, shown, _ = call("privacy", "ledger", folder / "state" / client)
            assert code == 0
            assert "Spent: epsilon 50 at delta 1e-05" in shown
            assert "NOT PRIVATE" in shown

        policy.write_text(policy_toml(Policy(methods=["feddm"], max_epsilon=60.0)))
        over = network.submit(toml(given | {"privacy": PRIVACY}), folder / "over")
        network.until_ended(over)
        said = network.said(over)
        assert "FEDAF-PRIVACY-BUDGET" in said
        assert "has spent epsilon 50" in said
        assert not (folder / "over" / "result.json").exists()
        assert [len(read_entries(ledger_of(folder, client))) for client in CLIENTS] == [1, 1]

        seeded = network.submit(toml(simulated), folder / "seeded")  # the server knows this noise
        network.until_ended(seeded)
        assert "FEDAF-POLICY-SIMULATED" in network.said(seeded)


def ledger_of(folder: Path, client: str) -> Path:
    return folder / "state" / client / client / LEDGER_FOLDER
