"""Shell commands on the machines of a deployment, which here are folders. No process may outlive the block, or connect
beyond loopback."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.commandline import COLOURS
from support.ctrl_c import heeding_ctrl_c
from support.network.loopback import BIN, HERE, MARK, SOURCE, ours


class Machines:
    """``folder`` holds the machines and the logs of commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "watch").touch()
        inherited = {name: value for name, value in os.environ.items() if name not in COLOURS}
        self.environment = inherited | {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, (HERE / "watched", SOURCE))),
            "FEDAF_TEST_WATCH": str(folder / "watch"),
            MARK: str(folder),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
            "TMPDIR": str(folder),
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, command: str, where: Path | None = None) -> subprocess.Popen[str]:
        """Start a command that keeps running."""
        with heeding_ctrl_c():
            program = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                cwd=where or self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        self._started.append(program)
        return program

    def do(self, commands: str, where: Path | None = None, *, seconds: float = 60) -> tuple[int, str, str]:
        """Run commands in one shell; return exit code, stdout and stderr."""
        return end_of(self.start(f"sh -ec {shlex.quote(commands)}", where), seconds=seconds)

    def until(self, holds: object, *, seconds: float, what: str) -> None:
        assert callable(holds)
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s\n{self.logs()}"
            time.sleep(0.1)

    def processes(self) -> dict[int, str]:
        return ours(str(self.folder))

    def works(self) -> bool:
        """Whether a client app is running."""
        return any("flwr-clientapp" in command for command in self.processes().values())

    def logs(self) -> str:
        return "\n".join(f"--- {log}\n{log.read_text(errors='replace')[-4000:]}" for log in self.folder.rglob("*.log"))

    def close(self) -> None:
        for program in self._started:
            if program.poll() is None:
                program.send_signal(signal.SIGINT)
        for program in self._started:
            with suppress(subprocess.TimeoutExpired):
                program.communicate(timeout=30)
        left = self.processes()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"these processes were left behind: {left}"
        lines = (self.folder / "watch").read_text().splitlines()
        assert [line for line in lines if line.startswith("watched")]
        assert not [line for line in lines if line.startswith("connected")]


def end_of(program: subprocess.Popen[str], *, seconds: float) -> tuple[int, str, str]:
    """Wait for a program to end; return exit code, stdout and stderr."""
    out, err = program.communicate(timeout=seconds)
    return program.returncode, out, err


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    found = Machines(folder)
    try:
        yield found
    finally:
        found.close()
