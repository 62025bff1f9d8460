"""An MPS daemon is started for the block and stopped after it; a stand-in for NVIDIA's program records its calls."""

import os

import pytest

from fedaf.sweep.mps import shared_gpu

PIPE = "CUDA_MPS_PIPE_DIRECTORY"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program called nvidia-cuda-mps-control on PATH that exits with a given status."""
    monkeypatch.delenv(PIPE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    calls = tmp_path / "calls"

    def install(status: int):
        file = tmp_path / "nvidia-cuda-mps-control"
        file.write_text(f'#!/bin/sh\necho "$*|$(test -t 0 || timeout 1 cat)|${PIPE}" >> {calls}\nexit {status}\n')
        file.chmod(0o755)
        return calls

    return install


def test_the_daemon_lives_as_long_as_the_block(program):
    calls = program(0)
    with shared_gpu():
        folder = os.environ[PIPE]
        assert os.path.isdir(folder)
    started, stopped = calls.read_text().splitlines()
    assert started.startswith("-d|")
    assert started.endswith(folder)
    assert stopped.startswith("|quit|")
    assert stopped.endswith(folder)
    assert PIPE not in os.environ
    assert not os.path.exists(folder)


def test_a_daemon_of_the_user_is_left_alone(program, monkeypatch):
    calls = program(0)
    monkeypatch.setenv(PIPE, "/somewhere")
    with shared_gpu():
        assert os.environ[PIPE] == "/somewhere"
    assert not calls.exists()


def test_a_daemon_that_does_not_start_is_a_warning(program, caplog):
    program(1)
    with shared_gpu():
        assert PIPE not in os.environ
    assert "could not be started" in caplog.text


def test_without_the_program_runs_go_on_with_a_warning(program, caplog):
    with shared_gpu():
        assert PIPE not in os.environ
    assert "not available" in caplog.text
