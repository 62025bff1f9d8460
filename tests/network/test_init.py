"""The page that ``fedaf deploy init`` writes is followed to the letter, on three machines that are folders."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.network.machines import Machines, end_of, machines

pytest.importorskip("flwr", reason="flwr, the network transport, is not installed")

from fedaf.deploy.processes import free_ports

pytestmark = [pytest.mark.network, pytest.mark.timeout(290)]

CONFIG = """
preset = "quick"
[run]
rounds = 2
threads = 1
[partition]
clients = 2
alpha = 0.5
[model]
width = 16
[federation]
min_clients = 2
[method]
name = "fedavg"
local_epochs = 1
"""


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Commands by the machine that the comment above them names, in the order of the page."""
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^# ", block, flags=re.MULTILINE)[1:]:
            where, _, commands = part.partition("\n")
            yield re.split(r"[, ]", where)[0], commands.strip()


def rounds_of(run: Path) -> list[dict]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def follow(here: Machines, page: str, here_is: Path) -> dict[str, list]:
    """Everything up to the run, as it stands there. Returns the programs that go on, by machine."""
    going: dict[str, list] = {}
    for machine, commands in blocks(page):
        where = here.folder / machine
        if machine == "every":
            assert commands.startswith("pip install 'fedaf[flower]==")  # done, by whoever runs this test
        elif machine == "here" and commands.startswith("scp"):
            for source, target in re.findall(r"^scp -rp (\S+) (\S+):", commands, re.MULTILINE):
                shutil.copytree(here_is / source, here.folder / {"127.0.0.1": "server"}.get(target, target))
        elif "ssh-keygen" in commands:
            own_key = (machine, commands)
        elif commands == "fedaf deploy link":
            site, making = own_key  # before anything is started, that site makes its own key and sends it
            assert here.do(making, here.folder / site)[0] == 0
            shutil.copyfile(here.folder / site / "node.pub", where / "keys" / f"{site}.pub")
            going.setdefault(machine, []).append(here.start(commands, where))
            here.until(lambda: "Uvicorn running" in here.logs(), seconds=60, what="a link")
        elif commands == "fedaf deploy node":
            going.setdefault(machine, []).append(here.start(commands, where))
        elif commands == "fedaf deploy run":
            return going
        else:
            code, out, err = here.do(commands, where)
            assert code == 0, out + err
    raise AssertionError("the page never runs anything")


def test_the_page_leads_to_a_run_that_can_be_stopped_resumed_and_watched(tmp_path):
    with machines(tmp_path) as here:
        (tmp_path / "config.toml").write_text(CONFIG)
        port = free_ports(1)[0]
        names = "--server 127.0.0.1 --sites hospital-a,hospital-b"
        assert here.do(f"fedaf deploy init setup {names} --port {port} --config config.toml")[0] == 0
        (tmp_path / "setup" / "server" / "link.toml").write_text(f'host = "127.0.0.1"\nport = {port}\n')  # not abroad
        page = (tmp_path / "setup" / "README.md").read_text()
        going = follow(here, page, tmp_path / "setup")
        assert {machine: len(programs) for machine, programs in going.items()} == {
            "server": 1,
            "hospital-a": 1,
            "hospital-b": 1,
        }
        server = tmp_path / "server"

        first = here.start("fedaf deploy run", server)
        here.until(lambda: rounds_of(server / "run"), seconds=150, what="a round")
        first.send_signal(signal.SIGINT)
        code, _, err = end_of(first, seconds=30)
        assert (code, err) == (130, "fedaf: stopped; fedaf deploy run goes on after the last whole round.\n")
        before = rounds_of(server / "run")
        assert len(before) == 1

        code, out, err = here.do("fedaf deploy run", server, seconds=150)
        assert (code, err) == (0, ""), out + here.logs()
        assert "rounds 2 to 2" in out
        assert "digits, 2 clients, Dirichlet 0.5, 2 rounds" in out
        assert rounds_of(server / "run")[0] == before[0]
        assert [metrics["asked"] for metrics in rounds_of(server / "run")] == [["hospital-a", "hospital-b"]] * 2

        code, _, err = here.do("fedaf deploy run", server)
        assert (code, err.count("\n")) == (2, 1)
        assert "is finished; name another directory with --out" in err

        for machine, commands in blocks(page[page.index("## Watch") : page.index("## Stop and resume")]):
            code, out, err = here.do(commands, tmp_path / machine)
            assert code == 0, out + err
        for program in going["hospital-a"]:
            program.send_signal(signal.SIGINT)
            assert end_of(program, seconds=30)[0] == 130


def test_a_renewed_certificate_serves_nodes_that_are_running(tmp_path):
    with machines(tmp_path) as here:
        port = free_ports(1)[0]
        assert here.do(f"fedaf deploy init all --server 127.0.0.1 --sites one --port {port}")[0] == 0
        server, site = tmp_path / "all" / "server", tmp_path / "all" / "sites" / "one"
        (server / "link.toml").write_text(f'host = "127.0.0.1"\nport = {port}\n')
        log = server / "logs" / "link.log"
        link = here.start("fedaf deploy link", server)
        here.until(lambda: log.is_file() and "Uvicorn running" in log.read_text(), seconds=60, what="a link")
        assert here.do(". ./env.sh; flwr supernode register keys/one.pub link", server)[0] == 0
        node = here.start("fedaf deploy node", site)
        heard = site / "logs" / "node.log"
        here.until(lambda: heard.is_file() and "SuperNode ID" in heard.read_text(), seconds=60, what="a node")
        link.send_signal(signal.SIGTERM)
        assert end_of(link, seconds=30)[0] == 128 + signal.SIGTERM

        before = (server / "server.crt").read_bytes()
        assert here.do("fedaf deploy renew .", tmp_path / "all")[0] == 0
        assert (server / "server.crt").read_bytes() != before
        here.until(lambda: "Connection attempt failed" in heard.read_text(), seconds=30, what="a node that waits")
        here.start("fedaf deploy link", server)
        here.until(lambda: "Connection successful after" in heard.read_text(), seconds=90, what="the node that is back")
        assert node.poll() is None
