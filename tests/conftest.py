"""Fixtures of several files. One thread: the tests' tensors are small, and numbers must not depend on the cores."""

import logging
import os
import sys

import pytest
import torch

from fedaf.cli import main as cli
from support.commandline import COLOURS
from support.fileserver import FileServer

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels then run in Python; read when triton is imported


def pytest_addoption(parser):
    parser.addoption("--fuzz", type=int, help="broken messages in test_fuzz.py (default: 5,000; slow: 100,000)")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path_factory):
    """Converted data sets stay within the test."""
    monkeypatch.setenv("FEDAF_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """The same without a new process: exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in COLOURS:
        monkeypatch.delenv(name, raising=False)
    threads = torch.get_num_threads()

    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedaf", *map(str, args)])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        out, err = capsys.readouterr()
        return exit.value.code or 0, out, err

    yield call
    torch.set_num_threads(threads)
    logging.getLogger("fedaf").setLevel(logging.NOTSET)  # -q and -v are for one command


@pytest.fixture
def server(monkeypatch):
    """A web server on loopback that is reached without any proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = FileServer()
    yield server
    server.close()
