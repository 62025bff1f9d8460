"""Programs of a deployment: everything that is started is stopped, descendants in other sessions too."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import pytest

pytest.importorskip("psutil", reason="the extra flower is not installed")

import psutil

from fedaf.deploy.processes import Processes, ending_orderly, environment, free_ports, last_words, refuse_taken
from fedaf.transports.flower import OFFLINE
from support.ctrl_c import heeding_ctrl_c
from support.errors import raises

# A program that ignores SIGTERM, with a child in another session that ignores it too.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(child.pid, flush=True)
{}
"""


def started(processes: Processes, code: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a program; return it and the id of its child."""
    process = processes.start("stubborn", sys.executable, "-c", STUBBORN.format(code))
    deadline = time.monotonic() + 20
    while not (said := processes.log("stubborn").read_text()).endswith("\n"):
        assert time.monotonic() < deadline, said
        time.sleep(0.05)
    return process, int(said)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr("fedaf.deploy.processes._GRACE_SECONDS", 0.5)


# A program that starts another one on SIGTERM, and ends at once.
LAST_MINUTE = """
import os, signal, subprocess, sys, time
def end(number, frame):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print(child.pid, flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.usefixtures("hasty")
def test_what_is_started_at_the_last_moment_is_ended_though_its_parent_is_gone(tmp_path):
    with Processes(tmp_path, dict(os.environ)) as processes:
        processes.start("late", sys.executable, "-c", LAST_MINUTE)
        deadline = time.monotonic() + 20
        while "ready" not in processes.log("late").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    _, child = processes.log("late").read_text().split()
    assert gone(int(child))


@pytest.mark.usefixtures("hasty")
def test_what_ignores_a_request_to_end_is_ended_with_its_child_in_another_session(tmp_path):
    with Processes(tmp_path, dict(os.environ)) as processes:
        process, child = started(processes, "time.sleep(60)")
    assert process.poll() is not None
    assert gone(child)


@pytest.mark.usefixtures("hasty")
def test_a_child_is_ended_though_its_parent_ended_before(tmp_path):
    with Processes(tmp_path, dict(os.environ)) as processes:
        process, child = started(processes, "time.sleep(2)")
        processes.watch()
        assert process.wait(timeout=20) == 0
        assert not gone(child)
    assert gone(child)


@pytest.mark.usefixtures("hasty")
def test_everything_is_stopped_when_the_block_fails(tmp_path):
    with suppress(KeyboardInterrupt), Processes(tmp_path, dict(os.environ)) as processes:
        process, child = started(processes, "time.sleep(60)")
        raise KeyboardInterrupt
    assert process.poll() is not None
    assert gone(child)


def test_a_second_ctrl_c_does_not_leave_anything_behind(tmp_path):
    with heeding_ctrl_c():
        with Processes(tmp_path, dict(os.environ)) as processes:
            process = processes.start(
                "slow", "sh", "-c", "trap 'sleep 1; exit' TERM; echo ready; while :; do sleep 0.1; done"
            )
            while not processes.log("slow").read_text():
                time.sleep(0.05)
            again = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -INT {os.getpid()}"])
        assert again.wait() == 0
        assert process.poll() is not None
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_program_that_ends_is_reported_with_the_end_of_its_log(tmp_path):
    with Processes(tmp_path, dict(os.environ)) as processes:
        processes.start("node", "sh", "-c", r"printf '\033[91mno such thing\033[0m\n'; exit 3").wait()
        with raises("FEDAF-DEPLOY-PROGRAM-ENDED") as caught:
            processes.watch()
    assert str(caught.value) == "node ended: no such thing."


def test_a_program_that_may_end_is_not_reported(tmp_path):
    with Processes(tmp_path, dict(os.environ)) as processes:
        processes.start("log", "false", may_end=True).wait()
        processes.watch()
        processes.start("link", "true").wait()
        with raises("FEDAF-DEPLOY-PROGRAM-ENDED") as caught:
            processes.watch()
    assert str(caught.value).startswith("link ended")


@pytest.mark.parametrize(("deaf", "number"), [(False, signal.SIGTERM), (True, signal.SIGKILL)])
def test_a_guarded_program_ends_with_its_input_whether_it_listens_or_not(deaf, number):
    ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN); guard._GRACE_SECONDS = 0.2"
    code = f"""
import signal, time
from fedaf.transports.flower import guard
{ignoring if deaf else ""}
guard.end_with_input()
print("ready", flush=True)
time.sleep(60)
"""
    program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.3)
        assert program.poll() is None
        assert program.stdin is not None
        program.stdin.close()
        assert program.wait(timeout=20) == -number


def test_a_request_to_end_unwinds_unless_it_was_to_be_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with pytest.raises(SystemExit) as ended:
            told_to_end(signal.SIGHUP, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def told_to_end(*numbers: signal.Signals) -> None:
    with ending_orderly():
        for number in numbers:
            os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("ERROR: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed", "CERTIFICATE-REFUSED", "ca.crt"),
        ("ERROR: [code: 2001]", "KEY-UNKNOWN", "node.pub"),
        ("ERROR: [code: 2004]", "KEY-UNKNOWN", "node.pub"),
        ("WARNING: Giving up reconnection after 5 seconds", "NO-ANSWER", "address"),
        ("[Errno 98] address already in use", "PORT-TAKEN", "port"),
    ],
)
def test_known_errors_of_flower_are_explained(tmp_path, line, code, word):
    with Processes(tmp_path, dict(os.environ)) as processes:
        processes.start("node", "printf", f"{line}\nINFO: Finished server process\n").wait()
        with raises(f"FEDAF-DEPLOY-{code}") as caught:
            processes.watch()
    assert word in str(caught.value)


def test_the_end_of_a_log_that_does_not_exist_is_still_a_phrase(tmp_path):
    assert last_words(tmp_path / "none.log")


def test_a_port_in_use_is_one_sentence():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with raises("FEDAF-DEPLOY-PORT-TAKEN") as caught:
            refuse_taken(port)
    assert f"port {port} of 127.0.0.1" in str(caught.value)
    refuse_taken(port)


def test_free_ports_differ():
    assert len(set(free_ports(20))) == 20


def test_flower_runs_offline_past_any_proxy_and_with_settings_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://192.0.2.1:3128")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    found = environment(tmp_path)
    assert OFFLINE.items() <= found.items()
    assert set(OFFLINE.values()) == {"0", "1"}
    assert found["FLWR_HOME"] == str(tmp_path)
    assert "HTTPS_PROXY" not in found
