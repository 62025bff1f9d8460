"""The pages of the documentation that start a federation on this machine work as they are."""

import contextlib
import os
import signal
from dataclasses import replace

import pytest

from support import ROOT
from support.pages import NETWORK, blocks
from support.reader import follow

pytest.importorskip("flwr", reason="flwr, the network transport, is not installed")

from fedaf.deploy.processes import free_ports

pytestmark = [pytest.mark.network, pytest.mark.timeout(290)]


@pytest.mark.parametrize("page", NETWORK)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    port = str(free_ports(1)[0])
    found = blocks((ROOT / page).read_text())
    local = [replace(block, code=block.code.replace("127.0.0.1 --", f"127.0.0.1 --port {port} --")) for block in found]
    local = [replace(block, code=block.code.replace("port = 8000", f"port = {port}")) for block in local]
    try:
        follow(local, tmp_path, monkeypatch)
    finally:
        for file in tmp_path.glob("*.pid"):  # what the page did not come to stop
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGTERM)
