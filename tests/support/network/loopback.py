"""A SuperLink and SuperNodes on loopback that tests start, kill and restart; all are stopped at the end of a block."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fedaf.transports.flower import OFFLINE, app_directory
from support import ROOT, TESTS
from support.ctrl_c import heeding_ctrl_c

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
SOURCE = ROOT / "src"
_PATIENCE = 300.0  # seconds
MARK = "FEDAF_TEST_NETWORK"  # in the environment of every process of a network


class Loopback:
    """Flower's programs by name; each logs to ``NAME.log`` in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs: dict[str, subprocess.Popen[bytes]] = {}
        self._port = free_port()
        self._environment = self._prepare()

    def start_link(self) -> None:
        """Start the link, with the database of an earlier one."""
        database = ("--database", str(self.folder / "link.db"))
        self._start("link", "flower-superlink", "--insecure", *listening(self._port), *database)
        self.until(lambda: answers(self._port), "the link listens")

    def start_node(self, name: str, **config: str | int) -> None:
        """Start a node. Unless ``config`` says otherwise, ``name`` is its client-id, and the digit at its end the
        number of its share of the split."""
        settings: dict[str, str | int] = {
            "client-id": name,
            "data": f"partition:{name[-1]}",
            "state-dir": str(self.folder / "state" / name),
            **{key.replace("_", "-"): value for key, value in config.items()},
        }
        self._start(
            name,
            *("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self._port}", *listening(free_port())),
            *("--node-config", " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())),
        )

    def submit(self, config: str, out: Path) -> str:
        """Start a run; return Flower's run id."""
        file = self.folder / f"{out.name}-run.toml"
        file.write_text(f"config = {json.dumps(config)}\nout = {json.dumps(str(out))}\n")
        done = self.flwr("run", str(app_directory()), "--run-config", str(file), "--format", "json")
        return str(json.loads(done)["run-id"])

    def flwr(self, *arguments: str) -> str:
        done = subprocess.run(
            [BIN / "flwr", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout

    def status(self, run: str) -> dict[str, Any]:
        runs = json.loads(self.flwr("list", "--format", "json"))["runs"]
        return next(found for found in runs if str(found["run-id"]) == run)

    def said(self, run: str) -> str:
        """Return the server's log of a run."""
        return self.flwr("log", run, "--show")

    def finish(self, config: str, out: Path) -> str:
        """Run to the end; return Flower's run id."""
        run = self.submit(config, out)
        self.until_ended(run)
        assert (out / "result.json").is_file(), self.logs()
        return run

    def until_ended(self, run: str) -> None:
        """Wait until the server app has started and ended. Faster than asking ``flwr list``."""
        self.until(lambda: self.processes("flwr-serverapp"), f"the ServerApp of {run}")
        self.until(lambda: not self.processes("flwr-serverapp"), f"the end of {run}")

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for a condition, with a limit that a busy machine does not reach."""
        deadline = time.monotonic() + _PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {_PATIENCE:g} s\n{self.logs()}"
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """SIGKILL one program, but not its children."""
        self.programs[name].kill()
        self.programs[name].wait()

    def kill_apps(self, program: str) -> None:
        """SIGKILL all processes of ``flwr-serverapp`` or ``flwr-clientapp``."""
        for process in self.processes(program):
            os.kill(process, signal.SIGKILL)
        self.until(lambda: not self.processes(program), f"the end of {program}")

    def processes(self, word: str) -> list[int]:
        """Return the processes of this network that have this word in their command line."""
        return list(ours(self._environment[MARK], word))

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}" for log in self.folder.glob("*.log")
        )

    def watched(self, word: str) -> list[str]:
        return [line for line in (self.folder / "watch").read_text().splitlines() if line.startswith(word)]

    def close(self) -> None:
        for program in reversed(self.programs.values()):
            with suppress(ProcessLookupError):
                program.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 40  # an app that lost its node keeps trying to report for a while
        for program in self.programs.values():
            with suppress(subprocess.TimeoutExpired):
                program.wait(timeout=max(0.1, deadline - time.monotonic()))
        while ours(self._environment[MARK]) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = ours(self._environment[MARK])
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for program in self.programs.values():
            program.wait()
        assert not left, f"these processes were left behind: {left}"

    def _start(self, name: str, program: str, *arguments: str) -> None:
        with open(self.folder / f"{name}.log", "ab") as log, heeding_ctrl_c():
            self.programs[name] = subprocess.Popen(
                [BIN / program, *arguments],
                env=self._environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _prepare(self) -> dict[str, str]:
        """Return an environment in which Flower finds its programs, fedaf and the link, and contacts nobody else."""
        home = self.folder / "home"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "loopback"\n\n'
            f'[superlink.loopback]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )
        inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        return inherited | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, (HERE / "watched", SOURCE, TESTS))),
            "FEDAF_TEST_WATCH": str(self.folder / "watch"),
            MARK: str(self.folder),
            "FEDAF_TEST_TROUBLE": str(self.folder / "trouble"),
            "FEDAF_CACHE": str(self.folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(home),
            **OFFLINE,
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
        }


@contextmanager
def loopback(folder: Path, nodes: Mapping[str, Mapping[str, str | int]]) -> Iterator[Loopback]:
    """A link with nodes. No process may outlive the block, and none may have connected beyond loopback."""
    network = Loopback(folder)
    with ExitStack() as stack:
        stack.callback(network.close)
        network.start_link()
        for name, config in nodes.items():
            network.start_node(name, **config)
        yield network
    assert not network.watched("connected")


def ours(mark: str, word: str = "") -> dict[int, str]:
    """Return the command lines of the running processes with this mark and this word in them, by process id."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())  # empty for a zombie
            if command and word in command and process.environ().get(MARK) == mark:
                found[process.pid] = command
    return found


def listening(port: int) -> tuple[str, ...]:
    return ("--host", "127.0.0.1", "--port", str(port))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
