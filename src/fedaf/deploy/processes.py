"""Programs of a deployment on this machine: started offline, watched, and stopped with all that they started."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

from fedaf.errors import FedafError, UserError
from fedaf.transports.flower import OFFLINE

_GRACE_SECONDS = 6.0
_SIGNS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate was not signed by the authority of ca.crt, has ended, or is "
    "for another name; compare ca.crt with the server's",
    "[code: 2001]": "the server admits nodes with a registered key only; register node.pub there",
    "[code: 2004]": "the server does not know the key of this node, or a node with it is running already; register "
    "node.pub there, or end the other",
    "Giving up reconnection": "no SuperLink with TLS answered there in the time it was given; check the address, and "
    "that the link is running",
    "address already in use": "its port is in use; choose another, or end what uses it",
}
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def environment(home: Path) -> dict[str, str]:
    """The environment for Flower's programs: offline, with their settings in ``home``, past any proxy, and with the
    programs beside this Python found first."""
    inherited = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    believed = {"FORWARDED_ALLOW_IPS": "127.0.0.1"}  # who may say that a request came from elsewhere than it did
    return {**inherited, **OFFLINE, **believed, "FLWR_HOME": str(home.absolute()), "PATH": path}


@contextmanager
def ending_orderly() -> Iterator[None]:
    """In the block, being told to end (a service that is stopped, a terminal that is closed) unwinds like Ctrl-C. What
    this process was told to ignore, as by nohup, it ignores."""

    def end(number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    heeded = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Processes:
    """Programs that end with the block they were started in, whatever happens there. Should this process be killed,
    their standard input ends, which tells those of ``transports.flower.guard`` to end too."""

    def __init__(self, logs: Path, environment: dict[str, str]) -> None:
        logs.mkdir(exist_ok=True)
        self._logs, self._environment = logs, environment
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._needed: set[str] = set()
        self._known: set[tuple[int, str]] = set()
        self._input, self._held = os.pipe()  # nobody writes; that this end is held is the message

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, name: str, *command: str | Path, may_end: bool = False) -> subprocess.Popen[bytes]:
        """A program in a session of its own, so that Ctrl-C reaches this process alone; it writes to ``NAME.log``. One
        that may end is not missed."""
        with open(self.log(name), "wb") as output:
            process = subprocess.Popen(
                command,
                env=self._environment,
                stdin=self._input,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started[name] = process
        if not may_end:
            self._needed.add(name)
        return process

    def log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def watch(self) -> None:
        """Take note of what the programs have started, and raise ``FedafError`` where one that is needed has ended."""
        started = {process.pid for process in self._started.values()}
        self._known |= {(p.pid, p.born) for p in _with_descendants(started, _listing())}
        for name, process in self._started.items():
            if name in self._needed and process.poll() is not None:
                raise FedafError(f"{name} ended: {why(self.log(name))}.")

    def wait_until_listening(self, name: str, port: int, *, seconds: float) -> None:
        """Wait until a program takes connections on loopback."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.watch()
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.1)
        raise FedafError(f"{name} does not listen on port {port} after {seconds:g} s: {why(self.log(name))}.")

    def stop(self) -> None:
        """End everything, once: politely, then by force. A second Ctrl-C in the meantime changes nothing."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDINGS}
        try:
            self._stop()
        finally:
            os.close(self._input)
            os.close(self._held)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        groups: set[int] = set()
        told: set[int] = set()
        deadline = time.monotonic() + _GRACE_SECONDS
        while (left := self._left(groups)) and time.monotonic() < deadline:
            orphans = {process.pid for process in left.values() if process.parent not in left}
            # All that is here; later on orphans only, as what one starts in order to end well is one's own to end.
            tell = (orphans if told else left.keys()) - told
            for pid in tell:
                _send(pid, signal.SIGTERM)
            told |= tell
            time.sleep(0.1)
        deadline = time.monotonic() + _GRACE_SECONDS
        while (left := self._left(groups)) and time.monotonic() < deadline:
            for pid in left:
                _send(pid, signal.SIGKILL)
            time.sleep(0.05)
        self._started.clear()

    def _left(self, groups: set[int]) -> dict[int, "_Process"]:
        """What still runs of all that was started, by id. What is being ended may start something at that moment, and
        be gone when we look: such a child stays in the process group of its parent, so that those are remembered in
        ``groups``. An id may be given to another process later on, hence the times of birth."""
        running = {process.pid for process in self._started.values() if process.poll() is None}
        listing = _listing()
        here = {p.pid for p in listing if p.pid in running or (p.pid, p.born) in self._known or p.group in groups}
        found = _with_descendants(here, listing)
        groups |= {p.group for p in found}
        self._known |= {(p.pid, p.born) for p in found}
        return {p.pid: p for p in found}


class _Process(NamedTuple):
    pid: int
    parent: int
    group: int
    born: str


def _with_descendants(roots: set[int], listing: Sequence[_Process]) -> list[_Process]:
    """Some processes and all that they have started, however far down and in whatever session."""
    found = set(roots)
    while more := {p.pid for p in listing if p.parent in found} - found:
        found |= more
    return [p for p in listing if p.pid in found]


def _listing() -> list[_Process]:
    """Every process that is not a zombie."""
    lines = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,pgid=,stat=,lstart="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = (line.split(maxsplit=4) for line in lines)
    return [
        _Process(int(pid), int(parent), int(group), born)
        for pid, parent, group, state, born in rows
        if not state.startswith("Z")
    ]


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def refuse_taken(port: int, host: str = "127.0.0.1") -> None:
    """Raise ``UserError`` for a port that another program has."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: one that just ended is no obstacle
        try:
            one.bind((host, port))
        except OSError as error:
            raise UserError(
                f"port {port} of {host} cannot be used ({error.strerror}); choose another, or end what uses it."
            ) from error


def why(log: Path) -> str:
    """The reason a program of Flower's had to end, from its log."""
    text = log.read_text(errors="replace") if log.is_file() else ""
    return next((meaning for sign, meaning in _SIGNS.items() if sign in text), last_words(log))


def last_words(log: Path, *, lines: int = 3) -> str:
    """The end of a program's log, in one line."""
    text = log.read_text(errors="replace").splitlines() if log.is_file() else []
    said = [_COLOURS.sub("", line).strip() for line in text if line.strip()]
    return " ".join(said[-lines:])[-600:].rstrip(".") or "it said nothing"
