"""Only nodes with a registered key take part, and only the server's own machine controls the link; all over TLS."""

import http.client
import shutil
import ssl
import sys
import time
from pathlib import Path

import pytest

from support.network.machines import Machines, machines

pytest.importorskip("flwr", reason="flwr, the network transport, is not installed")

from fedaf.deploy.credentials import make_authority
from fedaf.deploy.processes import free_ports

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

SITES = ("known", "unknown", "third")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """A running link that has registered the key of one of three sites."""
    folder = tmp_path_factory.mktemp("deployment")
    with machines(folder) as here:
        port = free_ports(1)[0]
        init = f"fedaf deploy init all --server 127.0.0.1 --port {port} --sites {','.join(SITES)}"
        assert here.do(init)[0] == 0
        server = folder / "all" / "server"
        (server / "link.toml").write_text(f'host = "127.0.0.1"\nport = {port}\n')
        here.start("fedaf deploy link", server)
        here.until(lambda: "Uvicorn running" in log_of(server / "logs" / "link.log"), seconds=60, what="a link")
        assert here.do(". ./env.sh; flwr supernode register keys/known.pub link", server)[0] == 0
        yield here, port


def log_of(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


def site_of(here: Machines, name: str) -> Path:
    return here.folder / "all" / "sites" / name


def assert_refused(here: Machines, site: Path, reason: str) -> None:
    """The node of a site must end soon, with an error that has this code."""
    began = time.monotonic()
    code, _, err = here.do("fedaf deploy node", site, seconds=60)
    assert code == 1, err
    assert err.startswith("fedaf: node ended: ")
    assert f"[FEDAF-DEPLOY-{reason}]" in err
    assert err.count("\n") == 1
    assert time.monotonic() - began < 45


def test_a_node_with_a_registered_key_is_admitted(deployment):
    here, _ = deployment
    site = site_of(here, "known")
    node = here.start("fedaf deploy node", site)
    here.until(lambda: "SuperNode ID" in log_of(site / "logs" / "node.log"), seconds=60, what="a connection")
    node.terminate()
    assert node.wait(timeout=30) == 128 + 15


def test_a_node_with_an_unknown_key_is_refused(deployment):
    here, _ = deployment
    assert_refused(here, site_of(here, "unknown"), "KEY-UNKNOWN")


def test_a_server_that_another_authority_vouches_for_is_refused(deployment, tmp_path):
    here, _ = deployment
    site = shutil.copytree(site_of(here, "third"), here.folder / "misled")
    make_authority(tmp_path)
    shutil.copyfile(tmp_path / "ca.crt", site / "ca.crt")
    assert_refused(here, site, "CERTIFICATE-REFUSED")


def test_a_node_without_a_key_is_refused(deployment):
    here, port = deployment
    ca = site_of(here, "third") / "ca.crt"
    own = f"--host 127.0.0.1 --port {free_ports(1)[0]} --max-wait-time 20"
    command = f"flower-supernode --superlink 127.0.0.1:{port} --root-certificates {ca} {own}"
    code, out, err = here.do(f". ./env.sh; {command}", here.folder / "all" / "server")
    assert code != 0
    assert "must be registered" in out + err


def test_a_node_without_tls_ends_in_bounded_time(deployment):
    here, port = deployment
    own = f"--host 127.0.0.1 --port {free_ports(1)[0]} --max-wait-time 5"
    command = f"flower-supernode --insecure --superlink 127.0.0.1:{port} {own}"
    code, out, err = here.do(f". ./env.sh; {command}", here.folder / "all" / "server", seconds=45)
    assert code != 0
    assert "Giving up reconnection after" in out + err
    assert "could not establish a connection" in out + err


def test_an_address_where_no_link_is_ends_in_one_sentence_in_bounded_time(deployment):
    here, port = deployment
    site = shutil.copytree(site_of(here, "third"), here.folder / "nowhere")
    (site / "node.toml").write_text(
        f"wait = 5\n{(site / 'node.toml').read_text().replace(str(port), str(free_ports(1)[0]))}"
    )
    assert_refused(here, site, "NO-ANSWER")


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux is all of 127/8 this machine")
def test_only_the_servers_own_machine_may_command_the_link(deployment):
    here, port = deployment
    authority = ssl.create_default_context(cafile=here.folder / "all" / "authority" / "ca.crt")

    def status(path: str, source: str) -> int:
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port, context=authority, source_address=(source, 0), timeout=10
        )
        try:
            connection.request("POST", path, headers={"X-Forwarded-For": "127.0.0.1"})
            return connection.getresponse().status
        finally:
            connection.close()

    for path in ("/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs"):
        assert status(path, "127.0.0.2") == 403
        assert status(path, "127.0.0.1") != 403
    assert status("/v1/fleet/activate-node", "127.0.0.2") != 403


FOREIGN = {
    "pyproject.toml": """
[project]
name = "foreign"
version = "0.1.0"
description = "Not the app of fedaf"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "apps:server"
clientapp = "apps:client"
[tool.flwr.app.config]
""",
    "apps.py": """
import time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
client = ClientApp()
server = ServerApp()
@client.query("photographs")
def send(message, context):
    Path(context.node_config["state-dir"], "taken").touch()
    return Message(RecordDict(), reply_to=message)
@server.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    (reply,) = grid.send_and_receive([Message(RecordDict(), nodes[0], "query.photographs")], timeout=60)
    print("the node answers", reply.error.reason if reply.has_error() else "as asked", flush=True)
""",
}


def test_a_node_runs_the_app_of_its_own_installation_and_no_other(deployment):
    here, _ = deployment
    app = here.folder / "foreign"
    app.mkdir()
    for name, text in FOREIGN.items():
        (app / name).write_text(text)
    site = site_of(here, "known")
    node = here.start("fedaf deploy node", site)
    command = f". ./env.sh; flwr run {app} link --stream"
    code, out, err = here.do(command, here.folder / "all" / "server", seconds=100)
    assert code == 0, out + err
    assert "the node answers" in out, here.logs()
    assert "as asked" not in out
    assert "FAB verification failed" in log_of(site / "logs" / "node.log")
    assert not (site / "state" / "taken").exists()
    node.terminate()
    node.wait(timeout=30)
