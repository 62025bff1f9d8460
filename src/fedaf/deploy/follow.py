"""Submit a run to a SuperLink and follow it; keep a link or a node running; run a whole deployment on one machine."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tomli_w

from fedaf.config import Config
from fedaf.deploy.init import KEYS, SERVER, SITES, init
from fedaf.deploy.machines import CONNECTION, Link, Site
from fedaf.deploy.processes import Processes, last_words
from fedaf.errors import FedafError, InUse, UserError
from fedaf.federation.events import EventReader, replay
from fedaf.federation.observer import Observer, ending
from fedaf.federation.run_directory import RESULT, RunDirectory, read_metrics
from fedaf.runs.composition import title_of
from fedaf.runs.experiment import phases_of

LOGS, RUN = "logs", "run"

_POLL_SECONDS, _SERVICE_POLL_SECONDS = 0.5, 2.0
_COMMAND_SECONDS = 120.0
_STOP_SECONDS = 20.0


def demo(
    config: Config, folder: Path, *, sites: Sequence[str], port: int, observer: Observer, say: Callable[[str], None]
) -> Path:
    """Run a whole deployment on loopback, from certificates to the last round, and stop all its programs.

    Args:
        config: The configuration to run.
        folder: New folder for the deployment.
        sites: Names of the sites.
        port: Port of the link.
        observer: Receives the events of the run.
        say: Receives one line per step of the preparation.

    Returns:
        The run directory.

    Raises:
        FedafError: If a program ends, or the run fails.
    """
    init(folder, server="127.0.0.1", host="127.0.0.1", port=port, sites=sites, config=config)
    link, out = Link.read(folder / SERVER), folder / RUN
    with Processes(folder / LOGS, link.environment | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3"}) as processes:
        say(f"starting a SuperLink on 127.0.0.1:{port}")
        processes.start("link", *link.prepare())
        processes.wait_until_listening("link", port, seconds=60)
        for number, name in enumerate(sites, 1):
            say(f"registering and starting SuperNode {number} of {len(sites)}")
            _flwr(link, "supernode", "register", str(link.folder / KEYS / f"{name}.pub"), CONNECTION)
            processes.start(name, *Site.read(folder / SITES / name).prepare())
        say("submitting the run")
        SubmittedRun(link, config, out).follow(observer, processes)
    return out


def run(link: Link, config: Config, out: Path, observer: Observer) -> None:
    """Submit a run to a running link and follow it to its end. Ctrl-C stops the run.

    Args:
        link: The machine of the link, which is this one.
        config: The configuration to run.
        out: Run directory; a run that was stopped there is resumed.
        observer: Receives the events of the run.

    Raises:
        UserError: If the run in ``out`` is finished, or no link was started.
        FedafError: If the link does not answer, or the run fails.
    """
    submitted = SubmittedRun(link, config, out)
    with Processes(link.folder / LOGS, link.environment) as processes:
        try:
            submitted.follow(observer, processes)
        except KeyboardInterrupt:
            submitted.stop()
            raise


def serve(machine: Link | Site, *, show: Callable[[str], object] | None = None) -> NoReturn:
    """Start a link or a node and keep it running until this process is told to end.

    Args:
        machine: The link or the node.
        show: Receives what it writes to its log.

    Raises:
        FedafError: If the program ends.
    """
    with Processes(machine.folder / LOGS, machine.environment) as processes:
        processes.start(machine.name, *machine.prepare())
        with open(processes.log(machine.name), errors="replace") as log:
            while True:
                if show is not None and (text := log.read()):
                    show(text)
                processes.watch()
                time.sleep(_SERVICE_POLL_SECONDS)


class SubmittedRun:
    """A run that was handed to a link. Its server app works in ``out``, and resumes a run that was stopped there."""

    def __init__(self, link: Link, config: Config, out: Path) -> None:
        if (out / RESULT).is_file():
            what = f"the run in {out} is finished; choose another directory with --out."
            raise UserError(what, code="FEDAF-DEPLOY-RUN-FINISHED")
        if not link.home.is_dir():
            what = f"no link was started in {link.folder}; start one with fedaf deploy link."
            raise UserError(what, code="FEDAF-DEPLOY-NO-LINK")
        self._link, self._config, self._out = link, config, out
        self._events = EventReader(out)
        self._events.read()  # skips those from before a resume
        self._failure: dict[str, Any] | None = None
        self._first_round = len(read_metrics(out)) + 1
        run_config = link.home / "run-config.toml"
        run_config.write_text(tomli_w.dumps({"config": config.to_toml(), "out": str(out.absolute())}))
        answer = _flwr(link, "run", str(link.app), CONNECTION, "--run-config", str(run_config))
        self._id = str(answer["run-id"])

    def follow(self, observer: Observer, processes: Processes) -> None:
        """Pass the events of the run to an observer until it ends.

        Raises:
            FedafError: If the run fails; with the message and code of the run's last event, or else with the reason
                that Flower gives.
        """
        try:
            self._follow(observer, processes)
        except BaseException as error:
            observer.closed(*ending(error))
            raise
        observer.closed(*ending(None))

    def _follow(self, observer: Observer, processes: Processes) -> None:
        config = self._config
        observer.started(
            title=title_of(config),
            rounds=config.run.rounds,
            first_round=self._first_round,
            phases=phases_of(config),
            device="the network",
        )
        stream = ("flwr", "log", self._id, CONNECTION, "--stream")  # ends with the run
        try:
            log = processes.start("run", *stream, may_end=True)
            while log.poll() is None or (final := self._final_state()) is None:
                if log.poll() is not None:  # the link was restarted; the run may continue
                    log = processes.start("run", *stream, may_end=True)
                time.sleep(_POLL_SECONDS)
                processes.watch()
                self._pass_events(observer)
            self._pass_events(observer)
        finally:
            observer.ended()
        if final["status"] != "finished:completed" or not (self._out / RESULT).is_file():
            reason = final.get("status-details") or last_words(processes.log("run"))
            failure = self._failure or {"message": reason, "code": "FEDAF-DEPLOY-RUN-FAILED"}
            raise FedafError(f"the run ended as {final['status']}: {failure['message']}", code=failure["code"])

    def stop(self) -> None:
        """Stop the run, and wait until its server app has released the run directory."""
        _flwr(self._link, "stop", self._id, CONNECTION)
        deadline = time.monotonic() + _STOP_SECONDS
        while self._out.is_dir() and time.monotonic() < deadline:
            try:
                RunDirectory(self._out).close()
            except InUse:
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _pass_events(self, observer: Observer) -> None:
        for event in self._events.read():
            if event["event"] == "failed":
                self._failure = event
            elif event["event"] not in ("started", "ended", "interrupted"):  # this class reports the start and the end
                replay(event, observer, self._out)

    def _final_state(self) -> dict[str, Any] | None:
        """Return what Flower knows about the run if it has ended."""
        (found,) = _flwr(self._link, "list", CONNECTION, "--run-id", self._id)["runs"]
        return dict(found) if found["status"].startswith("finished") else None


def _flwr(link: Link, *arguments: str) -> dict[str, Any]:
    """Run a ``flwr`` command and return its answer."""
    command = ["flwr", *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command, env=link.environment, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        what = f"flwr {arguments[0]} got no answer from the link in {error.timeout:g} s"
        raise FedafError(f"{what}; see its log in {link.folder / LOGS}.", code="FEDAF-DEPLOY-FLWR-TIMEOUT") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    if done.returncode == 0 and answer.get("success"):
        return dict(answer)
    reason = answer.get("error-message") or done.stderr or done.stdout or f"status {done.returncode}"
    what = f"flwr {arguments[0]} failed ({' '.join(str(reason).split())[:300]})"
    raise FedafError(f"{what}; is the link running?", code="FEDAF-DEPLOY-FLWR-FAILED")
