"""A run over a network, seen from the server's machine: handed to the link, followed, and told as it truly ended; and
all of a deployment on one machine."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedaf.config import Config
from fedaf.data.entries import NO_DATA
from fedaf.deploy.init import KEYS, SERVER, SITES, init
from fedaf.deploy.machines import CONNECTION, Link, Site, toml_lines
from fedaf.deploy.processes import Processes, last_words
from fedaf.errors import FedafError, UserError
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import RESULT, RunDirectory, read_metrics
from fedaf.runs.experiment import phases_of

LOGS, RUN = "logs", "run"

_POLL_SECONDS, _SERVICE_POLL_SECONDS = 0.5, 2.0
_COMMAND_SECONDS = 120.0
_STOP_SECONDS = 20.0
_ROUND = re.compile(r"fedaf: round (\d+)")
_PHASE = re.compile(r"fedaf: phase (\w+), (?:(\d+) clients|here)")
_SENTENCE = re.compile(r"^fedaf\.errors\.\w+: (.+)$", re.MULTILINE)


def demo(
    config: Config, folder: Path, *, sites: Sequence[str], port: int, observer: Observer, say: Callable[[str], None]
) -> Path:
    """A whole deployment on loopback, from certificates to the last round, that ends with this call. Returns the run
    directory."""
    init(folder, server="127.0.0.1", host="127.0.0.1", port=port, sites=sites, config=config)
    link, out = Link.read(folder / SERVER), folder / RUN
    with Processes(folder / LOGS, link.environment | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}) as processes:
        say(f"starting a SuperLink on 127.0.0.1:{port}")
        processes.start("link", *link.prepare())
        processes.wait_until_listening("link", port, seconds=60)
        for number, name in enumerate(sites, 1):
            say(f"registering and starting SuperNode {number} of {len(sites)}")
            flwr(link, "supernode", "register", str(link.folder / KEYS / f"{name}.pub"), CONNECTION)
            processes.start(name, *Site.read(folder / SITES / name).prepare())
        say("handing over the run")
        run = submit(link, config, out)
        follow(link, run, config, out, observer, processes)
    return out


def run(link: Link, config: Config, out: Path, observer: Observer) -> None:
    """Hand a run to a link that is running, and follow it to its end. Ctrl-C stops the run itself."""
    number = submit(link, config, out)
    with Processes(link.folder / LOGS, link.environment) as processes:
        try:
            follow(link, number, config, out, observer, processes)
        except KeyboardInterrupt:
            flwr(link, "stop", str(number), CONNECTION)
            _wait_until_free(out)
            raise


def serve(machine: Link | Site, *, show: Callable[[str], object] | None = None) -> NoReturn:
    """Start the link or the node of a folder, and stay with it until it ends or this process is told to. ``show`` is
    given what it writes to its log."""
    with Processes(machine.folder / LOGS, machine.environment) as processes:
        processes.start(machine.name, *machine.prepare())
        with open(processes.log(machine.name), errors="replace") as log:
            while True:  # until it is missed
                if show is not None and (text := log.read()):
                    show(text)
                processes.watch()
                time.sleep(_SERVICE_POLL_SECONDS)


def submit(link: Link, config: Config, out: Path) -> int:
    """Hand a run to the link, whose server app keeps it in ``out``, and goes on where there already is one. Returns
    Flower's number for it."""
    if (out / RESULT).is_file():
        raise UserError(f"the run in {out} is finished; name another directory with --out.")
    if not link.home.is_dir():
        raise UserError(f"no link was ever started in {link.folder}; start one with fedaf deploy link.")
    given = link.home / "run-config.toml"
    given.write_text(toml_lines({"config": config.to_toml(), "out": str(out.absolute())}))
    return int(flwr(link, "run", str(link.app), CONNECTION, "--run-config", str(given))["run-id"])


def follow(link: Link, run: int, config: Config, out: Path, observer: Observer, processes: Processes) -> None:
    """Tell an observer of a run until it ends; raise ``FedafError`` unless it ended well."""
    news = News(out, processes.log("run"), observer)
    observer.started(
        title=f"{config.method_name} on {'own data' if config.data.name == NO_DATA else config.data.name}",
        rounds=config.run.rounds,
        first_round=news.rounds + 1,
        phases=phases_of(config),
        device="the network",
    )
    try:
        log = processes.start("run", *_log(run), may_end=True)
        while log.poll() is None or (end := _end(link, run)) is None:
            if log.poll() is not None:  # the link was away; the run may go on
                log = processes.start("run", *_log(run), may_end=True)
            time.sleep(_POLL_SECONDS)
            processes.watch()
            news.tell()
        news.tell()
    finally:
        observer.ended()
    if end != "finished:completed" or not (out / RESULT).is_file():
        raise FedafError(f"the run ended as {end}: {_reason(processes.log('run'))}")


class News:
    """What a run has told since last time: its phases in the log of the server app, as ``fedaf.runs.network`` writes
    them there, its rounds in the run directory."""

    def __init__(self, out: Path, log: Path, observer: Observer) -> None:
        self._out, self._log, self._observer = out, log, observer
        self.rounds, self._lines = len(read_metrics(out)), 0

    def tell(self) -> None:
        for metrics in read_metrics(self._out)[self.rounds :]:
            for client, failure in metrics["failures"].items():
                phase, _, reason = failure.partition(": ")
                self._observer.client_failed(metrics["round"], phase, client, reason)
            self._observer.round_ended(metrics)
            self.rounds += 1
        lines = self._log.read_text(errors="replace").splitlines()
        for line in lines[self._lines :]:
            if found := _ROUND.fullmatch(line):
                self._observer.round_started(int(found[1]))
            elif found := _PHASE.fullmatch(line):
                self._observer.phase_started(found[1], int(found[2] or 0))
        self._lines = len(lines)


def flwr(link: Link, *arguments: str) -> dict[str, Any]:
    """What a ``flwr`` command answers; its failure is a ``FedafError``."""
    command = ["flwr", *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command, env=link.environment, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FedafError(f"flwr {arguments[0]} got no answer from the link in {error.timeout:g} s.") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if done.returncode == 0 and answer.get("success"):
        return dict(answer)
    reason = answer.get("error-message") or done.stderr or done.stdout or f"status {done.returncode}"
    raise FedafError(f"flwr {arguments[0]} failed ({' '.join(str(reason).split())[:300]}); is the link running?")


def _wait_until_free(out: Path) -> None:
    """Until the server app of a stopped run has let go of its directory, so that the run can go on at once."""
    deadline = time.monotonic() + _STOP_SECONDS
    while out.is_dir() and time.monotonic() < deadline:
        try:
            RunDirectory(out).close()
        except UserError:
            time.sleep(_POLL_SECONDS)
        else:
            return


def _log(run: int) -> tuple[str, ...]:
    """A command that writes what the server app says, and ends with the run."""
    return ("flwr", "log", str(run), CONNECTION, "--stream")


def _end(link: Link, run: int) -> str | None:
    """How a run ended, or nothing while it goes on."""
    (found,) = flwr(link, "list", CONNECTION, "--run-id", str(run))["runs"]
    status = str(found["status"])
    return status if status.startswith("finished") else None


def _reason(log: Path) -> str:
    """The sentence a server app ended with, or else its last words."""
    found = _SENTENCE.findall(log.read_text(errors="replace"))
    return found[-1] if found else last_words(log)
