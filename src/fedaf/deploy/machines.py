"""The settings files of machines, ``link.toml`` on the server and ``node.toml`` at a site, and the commands they give.

Paths in a settings file are relative to its folder.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from fedaf import config as configuration
from fedaf.common.version import __version__
from fedaf.config.policies import read_policy
from fedaf.deploy.credentials import CA_CERTIFICATE, NODE_KEY, SERVER_CERTIFICATE, SERVER_KEY
from fedaf.deploy.processes import environment, free_ports, refuse_taken
from fedaf.errors import UserError
from fedaf.transports.flower import app_directory
from fedaf.transports.flower.node import Node

LINK_FILE, NODE_FILE, CONNECTION = "link.toml", "node.toml", "link"
FLOWER_HOME, APP = "flower", "app"

_GUARD = ("-m", "fedaf.transports.flower.guard")
_Settings = TypeVar("_Settings", bound=BaseModel)
_ALL_ADDRESSES = ("0.0.0.0", "::")


class LinkSettings(BaseModel):
    """The settings in ``link.toml``."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(8000, ge=1, le=65535, description="port to listen on")
    ca: str = Field(CA_CERTIFICATE, description="certificate of the certificate authority")
    certificate: str = Field(SERVER_CERTIFICATE, description="certificate of the server")
    key: str = Field(SERVER_KEY, description="private key of the server")
    database: str = Field("link.db", description="database of the link: registered keys and runs")


class NodeSettings(BaseModel):
    """The settings in ``node.toml``."""

    model_config = ConfigDict(extra="forbid")

    superlink: str = Field(pattern=r"^.+:\d+$", description="host:port of the server")
    ca: str = Field(CA_CERTIFICATE, description="certificate of the authority that signed the server certificate")
    key: str = Field(NODE_KEY, description="private key of this node")
    wait: float = Field(86400, gt=0, description="seconds to keep trying to reach the server")
    node: dict[str, str | int] = Field(description="the node config: client-id, data, policy, ...")


@dataclass(frozen=True)
class Link:
    """The server's machine, which runs a SuperLink.

    Args:
        folder: Absolute path of its folder.
        settings: The settings in ``link.toml``.
    """

    folder: Path
    settings: LinkSettings
    name = "link"

    @classmethod
    def read(cls, folder: Path) -> "Link":
        """Read the folder of a server."""
        return cls(folder.absolute(), _read(folder / LINK_FILE, LinkSettings, "the folder of a server"))

    @property
    def home(self) -> Path:
        """Flower's home directory."""
        return self.folder / FLOWER_HOME

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the link and of every ``flwr`` command."""
        return environment(self.home)

    @property
    def app(self) -> Path:
        """The Flower app that a run sends to the nodes. Nodes refuse any app but that of their installation."""
        app = self.folder / APP
        given, installed = (folder / "pyproject.toml" for folder in (app, app_directory()))
        if not given.is_file() or given.read_bytes() != installed.read_bytes():
            what = f"{app} is not the app of fedaf {__version__}, so nodes would refuse it"
            raise UserError(f"{what}; replace it by a copy of {app_directory()}.", code="FEDAF-DEPLOY-APP-VERSION")
        return app

    def prepare(self) -> list[str]:
        """Check all files, write the connection settings for ``flwr``, and return the command that starts the link."""
        of = self.settings
        ca, certificate, key = (_file(self.folder, name) for name in (of.ca, of.certificate, of.key))
        refuse_taken(of.port, of.host)
        self.home.mkdir(exist_ok=True)
        host = "127.0.0.1" if of.host in _ALL_ADDRESSES else of.host
        address = f"[{host}]:{of.port}" if ":" in host else f"{host}:{of.port}"
        connection = {"address": address, "root-certificates": ca}
        settings = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        (self.home / "config.toml").write_text(tomli_w.dumps(settings))
        return [
            *(sys.executable, *_GUARD, "superlink", "--host", of.host, "--port", str(of.port)),
            *("--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key),
            *("--enable-supernode-auth", "--database", str(self.folder / of.database)),
        ]


@dataclass(frozen=True)
class Site:
    """A machine with data, which runs a SuperNode.

    Args:
        folder: Absolute path of its folder.
        settings: The settings in ``node.toml``.
    """

    folder: Path
    settings: NodeSettings
    name = "node"

    @classmethod
    def read(cls, folder: Path) -> "Site":
        """Read the folder of a site."""
        return cls(folder.absolute(), _read(folder / NODE_FILE, NodeSettings, "the folder of a site"))

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.folder / FLOWER_HOME)

    def prepare(self) -> list[str]:
        """Check all files, write the node config, and return the command that starts the node."""
        of = self.settings
        ca, key = (_file(self.folder, name) for name in (of.ca, of.key))
        table = self._node_config()
        node = Node.read(table)
        if node.policy is not None:
            read_policy(node.policy)
        file = node.folder / "node-config.toml"
        file.write_text(tomli_w.dumps(table))
        (port,) = free_ports(1)  # only programs on this machine connect to it
        return [
            *(sys.executable, *_GUARD, "supernode", "--superlink", of.superlink, "--root-certificates", ca),
            *("--auth-supernode-private-key", key, "--max-wait-time", str(of.wait)),
            *("--host", "127.0.0.1", "--port", str(port), "--node-config", str(file)),
        ]

    def _node_config(self) -> dict[str, str | int]:
        """Return the node config with absolute paths."""
        table = {"state-dir": "state", **self.settings.node}
        for name in ("state-dir", "data-dir", "policy"):
            if isinstance(path := table.get(name), str) and not (name == "policy" and path == "default"):
                table[name] = str(self.folder / path)
        kind, _, path = str(table.get("data", "")).partition(":")
        if kind in ("folder", "npz", "parquet") and path:
            table["data"] = f"{kind}:{self.folder / path}"
            if not (self.folder / path).exists():
                what = f"data in {self.folder / NODE_FILE} is {kind}:{path}, which does not exist"
                raise UserError(f"{what}; set the path of this site's images.", code="FEDAF-DEPLOY-DATA-NOT-FOUND")
        return table


def _read(path: Path, model: type[_Settings], kind: str) -> _Settings:
    if not path.is_file():
        what = f"{path.parent} is not {kind}: it has no {path.name}; fedaf deploy init creates such folders."
        raise UserError(what, code="FEDAF-DEPLOY-FOLDER-WRONG")
    return configuration.read_file(path, model, what="file")


def _file(folder: Path, name: str) -> str:
    path = folder / name
    if not path.is_file():
        what = f"{path} is missing; the README.md of the deployment says where it comes from."
        raise UserError(what, code="FEDAF-DEPLOY-FILE-MISSING")
    return str(path)
