"""Over a real network, FedAF computes what it computes in one process, bit for bit."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedaf import config as configuration
from fedaf.experiment import Experiment, prepare
from fedaf.federation import checkpoint
from fedaf.federation.client_state import ClientState
from fedaf.protocol import Tensors
from small import SMALL_FEDAF, OneByOne, Rounds, local

pytest.importorskip("flwr", reason="flwr, the network transport, is not installed")

APP = Path(__file__).parent / "flower_app"
BIN = Path(sys.executable).parent
ROUNDS = 2
CONFIG = {
    "data": {"name": "digits"},
    "run": {"device": "cpu", "rounds": ROUNDS, "threads": 1},
    "model": {"width": 16},
    "partition": {"alpha": 0.5, "clients": 2},
    "federation": {"quorum": 1.0, "deadline": 90.0},
    "method": {"name": "fedaf", **SMALL_FEDAF},
}


@pytest.fixture
def experiment() -> Experiment:
    return prepare(configuration.build(CONFIG))


@pytest.mark.timeout(270)
def test_over_a_network_fedaf_is_bit_for_bit_what_it_is_in_one_process(experiment, tmp_path):
    clients = list(experiment.partition.rows)
    with loopback(tmp_path, len(clients)) as submit:
        submit(config=experiment.config.to_toml(), out=str(tmp_path / "run"))
    assert (tmp_path / "run" / f"round-{ROUNDS}").is_dir(), logs(tmp_path)  # flwr itself does not tell of a failed run
    networked = checkpoint.load(tmp_path / "run")

    alone = OneByOne(local(experiment))
    rounds = Rounds(experiment, alone)
    for _ in range(ROUNDS):
        rounds.play()

    assert networked.server.round == ROUNDS
    assert networked.accepted == rounds.accepted == dict.fromkeys(clients, ROUNDS)
    assert_same(networked.server.model, rounds.server.model)
    assert networked.server.memory.keys() == rounds.server.memory.keys()
    for name, record in rounds.server.memory.items():
        assert_same(networked.server.memory[name], record)
    for number, name in enumerate(clients):
        kept = ClientState.read(tmp_path / f"node-{number}" / f"{name}.safetensors")
        here = ClientState.from_tensors(alone.checkpoint()[name])
        assert_same(between_rounds(kept), between_rounds(here))


def assert_same(actual: Tensors, expected: Tensors) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype, name
        assert torch.equal(actual[name], tensor), name


def between_rounds(state: ClientState) -> Tensors:
    """A client's state without what differs from run to run: the name of the run."""
    return replace(state.between_rounds(), run="").to_tensors()


@contextmanager
def loopback(folder: Path, nodes: int) -> Iterator[Callable[..., None]]:
    """A SuperLink and SuperNodes, reachable from this machine only, that end with the block, whatever happens in it.
    Gives a function that runs the app with a run config and waits for its end."""
    link, *ports = free_ports(1 + nodes)
    environment = flower_environment(folder / "home", link)
    with ExitStack() as stack:

        def start(log: str, *command: str) -> subprocess.Popen[bytes]:
            return stack.enter_context(running(folder / log, environment, *command))

        superlink = start("superlink.log", "flower-superlink", "--insecure", *listen_on(link))
        wait_until_listening(link, superlink, seconds=30)
        for number, port in enumerate(ports):
            state = folder / f"node-{number}"
            state.mkdir()
            start(
                f"node-{number}.log",
                *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", *listen_on(port)),
                *("--max-wait-time", "30", "--node-config", f'partition-id={number} state-dir="{state}"'),
            )

        def submit(**run_config: str) -> None:
            overrides = folder / "run_config.toml"
            overrides.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in run_config.items()))
            flwr = start("flwr.log", "flwr", "run", str(APP), "--stream", "--run-config", str(overrides))
            assert flwr.wait(timeout=200) == 0, logs(folder)

        yield submit


def flower_environment(home: Path, link: int) -> dict[str, str]:
    """An environment in which Flower finds its own programs and the link, and contacts nobody else."""
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return inherited | {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    }


@contextmanager
def running(log: Path, environment: dict[str, str], program: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process group of its own; at the end of the block it and all its offspring are ended."""
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [BIN / program, *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        offspring = descendants(process.pid)  # Flower starts some of it in groups of their own
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for pid in offspring:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> list[int]:
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listing.splitlines()]
    found = [pid]
    for parent in found:
        found += [child for child, its_parent in pairs if its_parent == parent]
    return found[1:]


def listen_on(port: int) -> tuple[str, ...]:
    return ("--host", "127.0.0.1", "--port", str(port))


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def wait_until_listening(port: int, process: subprocess.Popen[bytes], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    pytest.fail(f"nothing listens on port {port} (exit status of the program: {process.poll()})")


def logs(folder: Path) -> str:
    return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in folder.glob("*.log"))
