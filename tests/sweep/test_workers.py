"""Tasks in worker processes: several at once, and a worker that dies costs its task only."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedaf.errors import UserError
from fedaf.sweep.workers import Report, WorkerDied, run_in_workers
from support import TESTS
from support.worker_tasks import work


def ends(tasks, workers=2, stop=lambda: False) -> dict[str, Report]:
    reports = list(run_in_workers(tasks, work, workers=workers, stop=stop))
    return {report.task: report for report in reports if report.ended}


def test_tasks_run_at_the_same_time(tmp_path):
    tasks = [f"meet:{tmp_path}/x", f"meet:{tmp_path}/x/"]
    assert {report.result for report in ends(tasks).values()} == {f"meet {tmp_path}/x", f"meet {tmp_path}/x/"}


def test_errors_and_deaths_cost_one_task():
    found = ends(["die:a", "refuse:b", "odd:c", "do:d", "do:e"])
    assert found["do:d"].result == "do d"
    assert found["do:e"].result == "do e"
    assert isinstance(found["die:a"].error, WorkerDied)
    assert "-9" in str(found["die:a"].error)
    assert isinstance(found["refuse:b"].error, UserError)
    assert found["refuse:b"].error.code == "FEDAF-TEST"
    assert str(found["odd:c"].error) == "Unpicklable: a"


def test_nothing_is_started_once_it_is_time_to_stop():
    assert ends(["do:a", "do:b"], stop=lambda: True) == {}


def test_lines_arrive_before_the_end_of_their_task():
    reports = list(run_in_workers(["do:a"], work, workers=1, stop=lambda: False))
    assert [report.line for report in reports] == ["begins a", None]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent_and_checkpoint(tmp_path, end):
    code = (
        "import signal\nfrom fedaf.sweep.workers import run_in_workers\nfrom support.worker_tasks import work\n"
        "if __name__ == '__main__':\n"
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        f"    list(run_in_workers(['wait:{tmp_path}'], work, workers=1, stop=lambda: False))\n"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": paths})
    deadline = time.monotonic() + 60
    while not (found := [path for path in tmp_path.iterdir() if path.name.isdigit()]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.send_signal(end)
    parent.wait(60)
    while not (tmp_path / "checkpointed").exists():
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)
    while Path(f"/proc/{found[0].name}").exists() and "zombie" not in Path(f"/proc/{found[0].name}/status").read_text():
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)
