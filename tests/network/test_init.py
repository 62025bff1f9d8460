"""The commands on the page that ``fedaf deploy init`` writes work as they are, on three machines that are folders."""

import json
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import ROOT
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
    """Each machine that a comment in a block of commands names, and the commands below it, in the order of the page."""
    for block in re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^# ", block, flags=re.MULTILINE)[1:]:
            where, _, commands = part.partition("\n")
            yield re.split(r"[, ]", where)[0], commands.strip()


def rounds_of(run: Path) -> list[dict]:
    file = run / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def place(here: Machines, machine: str) -> Path:
    """The folder in which the page's commands for a machine are run."""
    return here.folder / machine / ("fedaf-server" if machine == "server" else "fedaf-site")


def copy(here: Machines, command: str, where: Path) -> None:
    """Carry out an ``scp``; every machine has a folder as its home directory."""
    *sources, target = command.removeprefix("scp ").removeprefix("-rp ").split()
    machine, _, name = target.partition(":")
    home = here.folder / {"127.0.0.1": "server"}.get(machine, machine)
    home.mkdir(exist_ok=True)
    for source in sources:
        found = where / source
        if found.is_dir():
            shutil.copytree(found, home / name)
        else:
            shutil.copy(found, home / name)


def install(here: Machines, commands: str) -> None:
    """Install the wheel as the page says, but without dependencies, offline, and not in place of what is tested."""
    *environment, pip = commands.splitlines()
    *environment, verify = environment
    assert environment == ["python3 -m venv fedaf-venv", ". fedaf-venv/bin/activate"]
    assert here.do(verify, here.folder / "server")[0] == 0
    code, out, err = here.do(f"{pip} --no-deps --no-index --target fedaf-venv", here.folder / "server")
    assert code == 0, out + err
    installed = here.folder / "server" / "fedaf-venv" / "fedaf"
    for path in (ROOT / "src" / "fedaf").rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            assert (installed / path.relative_to(ROOT / "src" / "fedaf")).is_file(), path


def follow(here: Machines, page: str, written: Path) -> dict[str, list]:
    """Carry out everything on the page up to the run. Returns the programs that keep running, by machine."""
    running: dict[str, list] = {}
    checkout = here.folder / "checkout"
    shutil.copytree(ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    own_key = ("", "")
    for machine, commands in blocks(page):
        if machine == "every":
            install(here, commands)
            continue
        if "ssh-keygen" in commands:
            own_key = (machine, commands)  # carried out once the folders are copied
            continue
        if commands == "fedaf deploy run":
            return running
        where = {"checkout": checkout, "here": written}.get(machine) or place(here, machine)
        for command in [commands] if commands.startswith(".") else commands.splitlines():
            if command.startswith("scp "):
                copy(here, command, where)
            elif command in ("fedaf deploy link", "fedaf deploy node"):
                if command == "fedaf deploy link":
                    site, making = own_key
                    assert here.do(making, place(here, site))[0] == 0
                    shutil.copyfile(place(here, site) / "node.pub", where / "keys" / f"{site}.pub")
                running.setdefault(machine, []).append(here.start(command, where))
                if command == "fedaf deploy link":
                    here.until(lambda: "Uvicorn running" in here.logs(), seconds=60, what="a link")
            else:
                code, out, err = here.do(command.replace("pip wheel", "pip wheel --no-build-isolation"), where)
                assert code == 0, out + err
    raise AssertionError("the page never runs anything")


def test_the_page_leads_to_a_run_that_can_be_stopped_resumed_and_watched(tmp_path):
    with machines(tmp_path) as here:
        (tmp_path / "config.toml").write_text(CONFIG)
        port = free_ports(1)[0]
        names = "--server 127.0.0.1 --sites hospital-a,hospital-b"
        assert here.do(f"fedaf deploy init setup {names} --port {port} --config config.toml")[0] == 0
        (tmp_path / "setup" / "server" / "link.toml").write_text(
            f'host = "127.0.0.1"\nport = {port}\n'
        )  # not on all addresses
        page = (tmp_path / "setup" / "README.md").read_text()
        running = follow(here, page, tmp_path / "setup")
        assert {machine: len(programs) for machine, programs in running.items()} == {
            "server": 1,
            "hospital-a": 1,
            "hospital-b": 1,
        }
        server = place(here, "server")

        first = here.start("fedaf deploy run", server)
        here.until(lambda: rounds_of(server / "run"), seconds=150, what="a round")
        first.send_signal(signal.SIGINT)
        code, _, err = end_of(first, seconds=30)
        assert (code, err.count("\n")) == (130, 1)
        assert err.startswith("fedaf: stopped; ")
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
        assert "[FEDAF-DEPLOY-RUN-FINISHED]" in err
        final = re.search(r"`(round-\d+/model.safetensors)`", page)
        assert final is not None
        assert (server / "run" / final[1]).is_file()
        assert (server / "run" / "events.jsonl").is_file()

        for machine, commands in blocks(page[page.index("## Watch") : page.index("## Stop and resume")]):
            code, out, err = here.do(commands, place(here, machine))
            assert code == 0, out + err
        for program in running["hospital-a"]:
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
        here.until(lambda: "Connection attempt failed" in heard.read_text(), seconds=30, what="a node that retries")
        here.start("fedaf deploy link", server)
        here.until(lambda: "Connection successful after" in heard.read_text(), seconds=90, what="the node to reconnect")
        assert node.poll() is None
