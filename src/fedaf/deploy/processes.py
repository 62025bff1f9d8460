"""Start Flower's programs on this machine, watch them, and stop them together with everything they started."""

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import STDOUT, Popen
from typing import NamedTuple, NoReturn, Self

import psutil

from fedaf.errors import FedafError, UserError
from fedaf.transports.flower import OFFLINE

_GRACE_SECONDS = 6.0
# What Flower writes to a log, the code of the error it means, and what to do about it.
_SIGNS = (
    (
        *("CERTIFICATE_VERIFY_FAILED", "FEDAF-DEPLOY-CERTIFICATE-REFUSED"),
        "the server's certificate has expired, is for another host name, or is not signed by the authority of ca.crt",
    ),
    ("[code: 2001]", "FEDAF-DEPLOY-KEY-UNKNOWN", "the key of this node is not registered; register node.pub there"),
    (
        *("[code: 2004]", "FEDAF-DEPLOY-KEY-UNKNOWN"),
        "the server does not know the key of this node, or another node uses it; register node.pub, or stop that node",
    ),
    (
        *("Giving up reconnection", "FEDAF-DEPLOY-NO-ANSWER"),
        "no SuperLink with TLS answered before the time limit; check the address, and that the link is running",
    ),
    ("address already in use", "FEDAF-DEPLOY-PORT-TAKEN", "its port is in use; choose another, or stop its program"),
)
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def environment(home: Path) -> dict[str, str]:
    """Return the environment for Flower's programs: offline, without a proxy, with their settings in ``home`` and with
    this Python's ``bin`` directory first on the path."""
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    trusted_proxies = {"FORWARDED_ALLOW_IPS": "127.0.0.1"}  # only these may set X-Forwarded-For
    return {**inherited, **OFFLINE, **trusted_proxies, "FLWR_HOME": str(home.absolute()), "PATH": path}


@contextmanager
def _handling(
    numbers: Iterable[signal.Signals], handler: Callable[[int, object], NoReturn] | signal.Handlers
) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def ending_orderly() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into ``SystemExit`` in the block, so that it cleans up as after Ctrl-C. A signal that is
    ignored, as under nohup, stays ignored."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    with _handling([n for n in _ENDINGS[1:] if signal.getsignal(n) is not signal.SIG_IGN], end):
        yield


class Processes:
    """Programs that are stopped at the end of a ``with`` block.

    If this process is killed, the standard input of the programs is closed; those started through
    ``fedaf.transports.flower.guard`` then end too.

    Args:
        logs: Folder for the log files, one per program.
        environment: Environment variables of all programs.
    """

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        logs.mkdir(exist_ok=True)
        self._logs, self._environment = logs, environment
        self._started: dict[str, Popen[bytes]] = {}
        self._needed: set[str] = set()
        self._known: set[psutil.Process] = set()
        self._groups: set[int] = set()  # process groups of programs that are being stopped
        self._input, self._write_end = os.pipe()  # never written to: closing it tells the programs to end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Stop everything: SIGTERM first, SIGKILL after a grace period. Further signals are ignored meanwhile."""
        with _handling(_ENDINGS, signal.SIG_IGN):
            try:
                self._stop()
            finally:
                os.close(self._input)
                os.close(self._write_end)

    def start(self, name: str, *command: str | Path, may_end: bool = False) -> Popen[bytes]:
        """Start a program in its own session, so that Ctrl-C reaches only this process.

        Args:
            name: Name of the program; its output goes to ``NAME.log``.
            command: The program and its arguments.
            may_end: Whether ``watch`` accepts that the program has ended.
        """
        with open(self.log(name), "wb") as output:
            process = Popen(
                command, env=self._environment, stdin=self._input, stdout=output, stderr=STDOUT, start_new_session=True
            )
        self._started[name] = process
        if not may_end:
            self._needed.add(name)
        return process

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def watch(self) -> None:
        """Record the descendants of the programs.

        Raises:
            FedafError: If a program that must keep running has ended.
        """
        started = {process.pid for process in self._started.values()}
        self._known |= {entry.process for entry in _with_descendants(started, _listing()).values()}
        for name, process in self._started.items():
            if name in self._needed and process.poll() is not None:
                raise _ended(f"{name} ended", self.log(name), "FEDAF-DEPLOY-PROGRAM-ENDED")

    def wait_until_listening(self, name: str, port: int, *, seconds: float) -> None:
        """Wait until a program accepts connections on loopback.

        Raises:
            FedafError: If it does not within the given number of seconds.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.watch()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.1)
        what = f"{name} does not listen on port {port} after {seconds:g} s"
        raise _ended(what, self.log(name), "FEDAF-DEPLOY-NOT-LISTENING")

    def _stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            asked: set[int] = set()
            deadline = time.monotonic() + _GRACE_SECONDS
            while (left := self._left()) and time.monotonic() < deadline:
                to_ask = set(left)
                if asked and number == signal.SIGTERM:
                    # Only orphans, as a program may start a child to shut down cleanly.
                    to_ask = {pid for pid, entry in left.items() if entry.parent not in left} - asked
                for pid in to_ask:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
                asked |= to_ask
                time.sleep(0.1)

    def _left(self) -> dict[int, "_Entry"]:
        """Return the processes that still run, by process id.

        A process that is being stopped may start a child and be gone before the next look. Such a child stays in its
        parent's process group, so the groups seen so far are searched too.
        """
        running = {process.pid for process in self._started.values() if process.poll() is None}
        listing = _listing()
        known = {pid for pid, entry in listing.items() if entry.process in self._known or entry.group in self._groups}
        left = _with_descendants(running | known, listing)
        self._groups |= {entry.group for entry in left.values()}
        self._known |= {entry.process for entry in left.values()}
        return left


class _Entry(NamedTuple):
    """A running process; psutil compares processes by id and start time, as the system reuses ids."""

    process: psutil.Process
    parent: int
    group: int


def _with_descendants(roots: set[int], listing: Mapping[int, _Entry]) -> dict[int, _Entry]:
    """Return the processes with these ids and all their descendants, in any session."""
    found = set(roots)
    while more := {pid for pid, entry in listing.items() if entry.parent in found} - found:
        found |= more
    return {pid: entry for pid, entry in listing.items() if pid in found}


def _listing() -> dict[int, _Entry]:
    """List every process that is not a zombie, by process id."""
    found = {}
    for process in psutil.process_iter(["ppid", "status"]):
        with suppress(OSError):
            if process.info["status"] != psutil.STATUS_ZOMBIE:
                found[process.pid] = _Entry(process, process.info["ppid"], os.getpgid(process.pid))
    return found


def free_ports(count: int) -> list[int]:
    """Return ports of loopback on which no program listens now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def refuse_taken(port: int, host: str = "127.0.0.1") -> None:
    """Raise ``UserError`` if another program uses a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: ignore sockets in TIME_WAIT
        try:
            one.bind((host, port))
        except OSError as error:
            what = f"port {port} of {host} cannot be used ({error.strerror})"
            remedy = "choose another port, or stop the program that uses it"
            raise UserError(f"{what}; {remedy}.", code="FEDAF-DEPLOY-PORT-TAKEN") from error


def last_words(log: Path, *, lines: int = 3) -> str:
    """Return the last lines of a program's log as one line."""
    text = log.read_text(errors="replace").splitlines() if log.is_file() else []
    written = [_COLOURS.sub("", line).strip() for line in text if line.strip()]
    return " ".join(written[-lines:])[-600:].rstrip(".") or "its log is empty"


def _ended(what: str, log: Path, code: str) -> FedafError:
    """Return the error for a program that failed: with the meaning of a known line of its log, else its last words."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    for sign, known_code, meaning in _SIGNS:
        if sign in text:
            return FedafError(f"{what}: {meaning}.", code=known_code)
    return FedafError(f"{what}: {last_words(log)}.", code=code)
