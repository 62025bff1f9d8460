"""``fedaf deploy`` without a network: what it writes, and what it refuses with one sentence."""

import re
import socket
import stat
import sys
import tomllib
from pathlib import Path

import pytest

from fedaf import config as configuration
from fedaf.config.policies import read_policy
from fedaf.transports.flower.node import Node
from support.commandline import assert_one_sentence

pytest.importorskip("flwr", reason="flwr, the network transport, is not installed")

from fedaf.deploy.machines import Link, Site
from fedaf.deploy.processes import free_ports
from fedaf.runs.experiment import disclosure, prepare

INIT = ["deploy", "init", "all", "--server", "fl.example.org", "--sites", "hospital-a,hospital-b"]


@pytest.fixture
def made(call, tmp_path):
    code, out, err = call(*INIT)
    assert (code, err) == (0, "")
    assert "all/README.md" in out
    return tmp_path / "all"


def test_each_machine_gets_what_it_needs_and_no_secret_of_another(made):
    found = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    site = {"README.md", "ca.crt", "config.toml", "node.key", "node.pub", "node.toml", "policy.toml"}
    server = {"app/pyproject.toml", "ca.crt", "config.toml", "env.sh", "link.toml", "server.crt", "server.key"}
    assert found == {
        "README.md",
        *("authority/ca.crt", "authority/ca.key"),
        *(f"server/{name}" for name in server),
        *(f"server/keys/{name}.pub" for name in ("hospital-a", "hospital-b")),
        *(f"sites/{name}/{file}" for name in ("hospital-a", "hospital-b") for file in site),
    }
    for name in ("hospital-a", "hospital-b"):
        assert (made / "server" / "keys" / f"{name}.pub").read_bytes() == (
            made / "sites" / name / "node.pub"
        ).read_bytes()


def test_what_is_written_is_for_its_owner_alone(made):
    for path in (made, made / "server", made / "authority", made / "sites" / "hospital-a"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for key in made.rglob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_the_settings_of_every_machine_are_understood(made):
    link = Link.read(made / "server")
    assert (link.settings.host, link.settings.port) == ("0.0.0.0", 8000)
    for number, name in enumerate(("hospital-a", "hospital-b")):
        site = Site.read(made / "sites" / name)
        assert site.settings.superlink == "fl.example.org:8000"
        command = site.prepare()
        file = Path(command[command.index("--node-config") + 1])
        node = Node.read(tomllib.loads(file.read_text()))
        assert (node.client, node.data) == (name, f"partition:{number}")
        assert node.policy == str(made / "sites" / name / "policy.toml")
        assert node.state_dir == made / "sites" / name / "state"


def test_the_policy_of_a_site_admits_the_run_and_no_other_method(made):
    config = configuration.build(configuration.read_toml(made / "server" / "config.toml"))
    policy = read_policy(str(made / "sites" / "hospital-a" / "policy.toml"))
    assert policy.methods == ["fedaf"]
    experiment = prepare(config)
    assert len(experiment.counts) == 2
    for counts in experiment.counts.values():
        policy.admit("fedaf", disclosure(config, counts))


def test_programs_of_a_machine_run_offline_and_env_sh_says_the_same(made):
    exports = dict(re.findall(r'^export (\w+)="(.*)"$', (made / "server" / "env.sh").read_text(), re.MULTILINE))
    environment = Link.read(made / "server").environment
    assert exports.pop("FLWR_HOME") == "$PWD/flower"
    assert environment["FLWR_HOME"] == str(made / "server" / "flower")
    assert exports == {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    assert exports.items() <= environment.items()


def test_with_bring_certificates_none_are_created_and_the_page_says_which_are_needed(call, tmp_path):
    assert call(*INIT, "--bring-certificates")[0] == 0
    assert not [path.name for path in tmp_path.rglob("*") if path.name in ("ca.crt", "ca.key", "server.crt")]
    page = (tmp_path / "all" / "README.md").read_text()
    for file in ("server/server.crt", "server/server.key", "server/ca.crt", "sites/*/ca.crt"):
        assert f"`{file}`" in page
    assert "fedaf deploy renew" not in page
    code, _, err = call("deploy", "link", "all/server")
    assert_one_sentence(code, err, ["all/server/ca.crt", "[FEDAF-DEPLOY-FILE-MISSING]"])
    code, _, err = call("deploy", "renew", "all")
    assert_one_sentence(code, err, ["[FEDAF-DEPLOY-AUTHORITY-EXTERNAL]"])


def test_a_given_configuration_is_what_runs(call, tmp_path):
    (tmp_path / "own.toml").write_text(
        '[data]\nname = "none"\nshape = [1, 8, 8]\nclasses = ["cat", "dog"]\n[method]\nname = "fedavg"\n'
    )
    assert call(*INIT, "--config", "own.toml")[0] == 0
    assert configuration.read_toml(tmp_path / "all" / "server" / "config.toml")["data"]["classes"] == ["cat", "dog"]
    site = tmp_path / "all" / "sites" / "hospital-a"
    assert tomllib.loads((site / "node.toml").read_text())["node"]["data"] == "folder:images"
    assert read_policy(str(site / "policy.toml")).methods == ["fedavg"]
    code, _, err = call("deploy", "node", site)
    assert_one_sentence(code, err, ["folder:images", "[FEDAF-DEPLOY-DATA-NOT-FOUND]"])


def test_renewing_changes_the_certificate_of_the_server_alone(call, made):
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    code, out, _ = call("deploy", "renew", made)
    assert code == 0
    assert str(made / "server") in out
    changed = {str(path.relative_to(made)) for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"server/server.crt", "server/server.key"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--server", "fl.example.org:8000"], ["fl.example.org:8000", "[FEDAF-DEPLOY-SERVER-NAME]"]),
        (["--server", "https://fl.example.org"], ["https://fl.example.org", "[FEDAF-DEPLOY-SERVER-NAME]"]),
        (["--sites", ","], ["--sites", "[FEDAF-DEPLOY-SITE-NAME]"]),
        (["--sites", "a,../b"], ["'../b'", "[FEDAF-DEPLOY-SITE-NAME]"]),
        (["--sites", "a,b,a"], ["--sites has a ", "[FEDAF-DEPLOY-SITE-NAME]"]),
        (["--config", "none.toml"], ["none.toml", "[FEDAF-CONFIG-READ]"]),
    ],
)
def test_init_refuses_in_one_sentence_what_it_cannot_use(call, tmp_path, change, words):
    code, _, err = call(*INIT, *change)
    assert_one_sentence(code, err, words)
    assert not (tmp_path / "all").exists()


def test_an_address_with_colons_is_told_from_its_port(call, tmp_path):
    assert call(*INIT, "--server", "2001:db8::1")[0] == 0
    assert Site.read(tmp_path / "all" / "sites" / "hospital-a").settings.superlink == "[2001:db8::1]:8000"


def test_init_refuses_a_folder_in_use(call, made):
    code, _, err = call(*INIT)
    assert_one_sentence(code, err, ["all is not empty", "[FEDAF-DEPLOY-FOLDER-USED]"])


@pytest.mark.parametrize(
    ("command", "file", "text", "words"),
    [
        (
            "node",
            "node.toml",
            'superlink = "fl.example.org"\n[node]\n',
            ["superlink", "fl.example.org", "[FEDAF-CONFIG-VALUE]"],
        ),
        (
            *("node", "node.toml", 'superlink = "h:1"\n[node]\nclient-id = "a"\ndata = "x"\n'),
            ["data is 'x'", "[FEDAF-NODE-DATA]"],
        ),
        (
            *("node", "node.toml", 'superlink = "h:1"\nkye = "node.key"\n[node]\n'),
            ["'kye'", "did you mean 'key'", "[FEDAF-CONFIG-KEY]"],
        ),
        ("node", "node.toml", 'superlink = "h:1"\n', ["'node'", "[FEDAF-CONFIG-MISSING]"]),
        ("link", "link.toml", "port = 70000\n", ["port is 70000", "[FEDAF-CONFIG-VALUE]"]),
        ("link", "link.toml", "port = \n", ["link.toml", "[FEDAF-CONFIG-TOML]"]),
    ],
)
def test_a_wrong_settings_file_is_one_sentence(call, made, command, file, text, words):
    folder = made / ("sites/hospital-a" if command == "node" else "server")
    (folder / file).write_text(text)
    code, _, err = call("deploy", command, folder)
    assert_one_sentence(code, err, words)


def test_a_policy_that_cannot_be_read_is_named_before_the_node_starts(call, made):
    (made / "sites" / "hospital-a" / "policy.toml").write_text("min_sample = 3\n")
    code, _, err = call("deploy", "node", made / "sites" / "hospital-a")
    assert_one_sentence(code, err, ["min_sample", "did you mean 'min_samples'", "[FEDAF-CONFIG-KEY]"])


@pytest.mark.parametrize("command", ["link", "node", "run"])
def test_a_folder_of_something_else_is_one_sentence(call, tmp_path, command):
    code, _, err = call("deploy", command, tmp_path)
    assert_one_sentence(code, err, [str(tmp_path), "[FEDAF-DEPLOY-FOLDER-WRONG]"])


def test_a_run_without_a_link_is_one_sentence(call, made):
    code, _, err = call("deploy", "run", made / "server")
    assert_one_sentence(code, err, ["fedaf deploy link", "[FEDAF-DEPLOY-NO-LINK]"])
    (made / "server" / "link.toml").write_text(f'host = "127.0.0.1"\nport = {free_ports(1)[0]}\n')
    Link.read(made / "server").prepare()  # as if a link had been started, and had ended
    code, _, err = call("deploy", "run", made / "server")
    assert (code, err.count("\n")) == (1, 1)
    assert "[FEDAF-DEPLOY-FLWR-FAILED]" in err


def test_an_app_of_another_version_is_one_sentence_as_nodes_would_refuse_it(call, made):
    Link.read(made / "server").home.mkdir()
    app = made / "server" / "app" / "pyproject.toml"
    app.write_text(app.read_text().replace("0.1.0", "0.0.9"))
    code, _, err = call("deploy", "run", made / "server")
    assert_one_sentence(code, err, ["server/app", "[FEDAF-DEPLOY-APP-VERSION]"])


def test_a_port_in_use_is_one_sentence(call, made):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, _, err = call("deploy", "demo", "--port", port)
        assert_one_sentence(code, err, [f"port {port} of 127.0.0.1", "[FEDAF-DEPLOY-PORT-TAKEN]"])
        (made / "server" / "link.toml").write_text(f'host = "127.0.0.1"\nport = {port}\n')
        code, _, err = call("deploy", "link", made / "server")
        assert_one_sentence(code, err, [f"port {port} of 127.0.0.1", "[FEDAF-DEPLOY-PORT-TAKEN]"])


@pytest.mark.parametrize("command", [["demo"], INIT[1:], ["link"], ["node"], ["run"]])
def test_without_flower_the_error_says_how_to_install_it(call, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "flwr", None)
    code, _, err = call("deploy", *command)
    assert_one_sentence(code, err, ["pip install '.[flower]'", "[FEDAF-DEPLOY-NO-FLOWER]"])


def test_the_demo_refuses_a_folder_in_use(call, made):
    code, _, err = call("deploy", "demo", "--keep", made)
    assert_one_sentence(code, err, [str(made), "[FEDAF-DEPLOY-FOLDER-USED]"])
