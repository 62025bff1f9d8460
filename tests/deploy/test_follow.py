"""A run over a network is reported from the events it writes, and fails with the message of the server app."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from fedaf import config as configuration
from fedaf.deploy import follow
from fedaf.deploy.init import SERVER, init
from fedaf.deploy.machines import Link
from fedaf.deploy.processes import Processes
from fedaf.federation.events import EVENTS
from fedaf.federation.observer import Observer
from support.errors import raises


class Recorder(Observer):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        self.events.append(("started", first_round, device))

    def round_started(self, round: int) -> None:
        self.events.append(("round", round))

    def phase_started(self, name: str, clients: int) -> None:
        self.events.append((name, clients))

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        self.events.append((client, phase, reason))

    def round_ended(self, metrics: Any) -> None:
        self.events.append(metrics)

    def ended(self) -> None:
        self.events.append("ended")

    def closed(self, status: str, reason: str) -> None:
        self.events.append(status)


class Deployment:
    """A link that never runs: ``flwr log`` prints ``log``, and ``flwr list`` says how the run ended."""

    def __init__(self, folder: Path) -> None:
        self._config = configuration.build({"data": {"name": "digits"}, "run": {"rounds": 2}})
        init(folder / "all", server="127.0.0.1", sites=["one"], config=self._config)
        self._link, self.out = Link.read(folder / "all" / SERVER), folder / "run"
        self._link.home.mkdir()
        self.status, self.details, self.log = "finished:completed", "", ""
        self._programs = folder / "bin"
        self._programs.mkdir()

    def flwr(self, link: Link, command: str, *arguments: str) -> dict[str, Any]:
        return {"run": {"run-id": 7}, "list": {"runs": [{"status": self.status, "status-details": self.details}]}}[
            command
        ]

    def write(self, event: str, **fields: Any) -> None:
        """Append an event to the run directory."""
        with open(self.out / EVENTS, "a") as file:
            file.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")

    def submit(self) -> follow.SubmittedRun:
        return follow.SubmittedRun(self._link, self._config, self.out)

    def follow(self, run: follow.SubmittedRun) -> list[Any]:
        program = self._programs / "flwr"
        program.write_text(f"#!/bin/sh\necho '{self.log}'\n")
        program.chmod(0o755)
        recorder = Recorder()
        environment = {"PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}"}
        with Processes(self._link.folder / "logs", environment) as processes:
            run.follow(recorder, processes)
        return recorder.events


@pytest.fixture
def deployment(tmp_path, monkeypatch) -> Deployment:
    found = Deployment(tmp_path)
    monkeypatch.setattr(follow, "_flwr", found.flwr)
    return found


def test_events_reach_the_observer_and_those_from_before_a_resume_do_not(deployment):
    deployment.out.mkdir()
    deployment.write("round_started", round=1)
    deployment.write("round_ended", metrics={"round": 1})
    deployment.write("failed", message="an earlier failure", code="FEDAF-QUORUM")
    (deployment.out / "metrics.jsonl").write_text('{"round": 1}\n')
    run = deployment.submit()
    deployment.write("started", title="", rounds=2, first_round=2, phases=1, device="cpu")
    deployment.write("round_started", round=2)
    deployment.write("phase_started", name="fit", clients=3)
    deployment.write("client_failed", round=2, phase="fit", client="one", reason="its disk is full")
    deployment.write("round_ended", metrics={"round": 2})
    deployment.write("ended")
    (deployment.out / "result.json").touch()
    assert deployment.follow(run) == [
        ("started", 2, "the network"),
        ("round", 2),
        ("fit", 3),
        ("one", "fit", "its disk is full"),
        {"round": 2},
        *("ended", "finished"),
    ]


def test_a_failed_run_has_the_message_and_code_of_the_server_app(deployment):
    run = deployment.submit()
    deployment.out.mkdir()
    deployment.status = "finished:failed"
    deployment.write("failed", message="0 of 3 clients answered", code="FEDAF-QUORUM")
    with raises("FEDAF-QUORUM") as caught:
        deployment.follow(run)
    assert "0 of 3 clients answered" in str(caught.value)


def test_a_run_that_failed_without_an_event_has_the_reason_that_flower_gives(deployment):
    deployment.status, deployment.details = "finished:failed", "no such method"
    with raises("FEDAF-DEPLOY-RUN-FAILED") as caught:
        deployment.follow(deployment.submit())
    assert "no such method" in str(caught.value)


def test_a_run_that_ended_without_a_result_failed_with_the_end_of_its_log(deployment):
    deployment.log = "Killed"
    with raises("FEDAF-DEPLOY-RUN-FAILED") as caught:
        deployment.follow(deployment.submit())
    assert "Killed" in str(caught.value)


def test_a_finished_run_is_not_submitted_again(deployment):
    deployment.out.mkdir()
    (deployment.out / "result.json").touch()
    with raises("FEDAF-DEPLOY-RUN-FINISHED"):
        deployment.submit()
