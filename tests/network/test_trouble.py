"""A failing client costs only its own reply: the result is that of one process in which the same replies were lost."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedaf.config.policies import policy_toml
from fedaf.protocol import Policy
from support.network.comparison import assert_as_in_one_process, tables, toml
from support.network.loopback import Loopback, loopback
from support.small import SMALL_FEDAF

pytestmark = [pytest.mark.network, pytest.mark.timeout(900)]

AVERAGING, CONDENSING = "support.network.troubled:TroubledFedAvg", "support.network.troubled:TroubledFedAF"
DEADLINE = 40.0  # long for a phase of seconds, but the machine may be busy


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Iterator[Loopback]:
    folder = tmp_path_factory.mktemp("network")
    (folder / "policy.toml").write_text(policy_toml(Policy(methods=[AVERAGING, CONDENSING])))
    (folder / "trouble").mkdir()
    with loopback(folder, {f"client-{k}": {"policy": str(folder / "policy.toml")} for k in range(3)}) as network:
        yield network


def test_a_client_that_raises_or_sends_nonsense_costs_its_own_reply(network):
    given = tables(AVERAGING, rounds=2, quorum=0.3, local_epochs=1)
    out = network.folder / "averaging"
    (network.folder / "trouble" / "client-0").write_text("raises\n\n")
    (network.folder / "trouble" / "client-1").write_text("not finite\nwrong shape\n")
    network.finish(toml(given), out)

    first, second = rounds_of(out)
    assert "ZeroDivisionError" in first["failures"].pop("client-0")
    assert "not finite" in first["failures"].pop("client-1")
    assert "axis 0" in second["failures"].pop("client-1")
    assert (first["failures"], second["failures"]) == ({}, {})
    lost = [("client-0", 1, "fit"), ("client-1", 1, "fit"), ("client-1", 2, "fit")]
    assert_as_in_one_process(given, out, network, lost=lost)


def test_a_node_killed_while_condensing_and_a_slow_one_cost_their_replies_and_are_back_in_the_next_round(network):
    """Client states are neither lost nor applied twice: images continue from the last round that was accepted."""
    given = tables(CONDENSING, rounds=3, deadline=DEADLINE, quorum=0.3, **{**SMALL_FEDAF, "local_steps": 10})
    out, trouble = network.folder / "condensing", network.folder / "trouble"
    for client in ("client-0", "client-1"):
        (trouble / client).write_text("\nslow\n")  # no trouble in the first round
    run = network.submit(toml(given), out)
    network.until(lambda: not (trouble / "client-1").read_text(), "client-1 condenses in round 2")
    network.kill("client-1")
    network.start_node("client-1", policy=str(network.folder / "policy.toml"))
    network.until_ended(run)

    metrics = rounds_of(out)
    assert [sorted(m["failures"]) for m in metrics] == [[], ["client-0", "client-1"], []]
    phase, _, reason = metrics[1]["failures"]["client-0"].partition(": ")
    assert phase == "condense"
    assert "deadline" in reason
    assert metrics[1]["seconds"]["condense"] < DEADLINE + 5
    assert metrics[2]["asked"] == ["client-0", "client-1", "client-2"]
    lost = [(client, 2, "condense") for client in ("client-0", "client-1")]
    assert_as_in_one_process(given, out, network, lost=lost)


def rounds_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
