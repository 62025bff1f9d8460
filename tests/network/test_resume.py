"""A server that is killed and restarted resumes after its last round, and ends with the same numbers."""

from pathlib import Path

import pytest

from support.network.comparison import assert_as_in_one_process, tables, toml
from support.network.loopback import Loopback, loopback

pytestmark = [pytest.mark.network, pytest.mark.timeout(600)]


def test_a_server_killed_between_and_within_rounds_ends_as_if_undisturbed_and_so_does_a_killed_link(tmp_path):
    """With FedDyn, which has state on the server and on every client."""
    given = tables("feddyn", rounds=2, clients=2, local_epochs=1)
    out = tmp_path / "run"
    with loopback(tmp_path / "network", {f"client-{k}": {} for k in range(2)}) as network:
        run = network.submit(toml(given), out)
        network.until(lambda: latest(out) == "round-1", "round 1")
        kill_server(network, run)

        run = network.submit(toml(given), out)
        network.until(lambda: network.processes("flwr-serverapp"), "a ServerApp")
        file = network.folder / "state" / "client-1" / "client-1"
        before = newest(file)
        network.until(lambda: newest(file) > before, "client-1 has worked in round 2")
        assert latest(out) == "round-1"
        kill_server(network, run)

        network.kill("link")
        network.start_link()  # nodes reconnect by themselves
        network.finish(toml(given), out)
        assert_as_in_one_process(given, out, network)
        network.kill_apps("flwr-clientapp")  # one with half a message would wait for the rest


def kill_server(network: Loopback, run: str) -> None:
    """Kill the server app, and stop its run, which Flower would do a minute later."""
    network.kill_apps("flwr-serverapp")
    network.flwr("stop", run)


def latest(out: Path) -> str:
    file = out / "LATEST"
    return file.read_text() if file.exists() else ""


def newest(folder: Path) -> int:
    return max((file.stat().st_mtime_ns for file in folder.glob("*.safetensors")), default=0)
