"""What the folder of a machine says of it, and the command that it comes to: ``link.toml`` on the server, ``node.toml``
at a site. Paths are those of the folder."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from fedaf import __version__
from fedaf import config as configuration
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
_EVERYWHERE = ("0.0.0.0", "::")


class LinkSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    host: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(8000, ge=1, le=65535, description="port to listen on")
    ca: str = Field(CA_CERTIFICATE, description="certificate of the authority")
    certificate: str = Field(SERVER_CERTIFICATE, description="certificate of the server")
    key: str = Field(SERVER_KEY, description="its private key")
    database: str = Field("link.db", description="what the link remembers: registered keys, runs")


class NodeSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    superlink: str = Field(pattern=r"^.+:\d+$", description="host:port of the server")
    ca: str = Field(CA_CERTIFICATE, description="certificate of the authority that signed the server's")
    key: str = Field(NODE_KEY, description="private key of this node")
    wait: float = Field(86400, gt=0, description="seconds to wait for a server that does not answer")
    node: dict[str, str | int] = Field(description="what this node is: client-id, data, policy, ...")


@dataclass(frozen=True)
class Link:
    """The server's machine."""

    folder: Path
    settings: LinkSettings
    name = "link"

    @classmethod
    def read(cls, folder: Path) -> "Link":
        return cls(folder.absolute(), _read(folder / LINK_FILE, LinkSettings, "the folder of a server"))

    @property
    def home(self) -> Path:
        return self.folder / FLOWER_HOME

    @property
    def environment(self) -> dict[str, str]:
        """Of the link and of every ``flwr`` command to it."""
        return environment(self.home)

    @property
    def app(self) -> Path:
        """The Flower app that a run hands to the nodes: that of this installation, or nodes refuse it."""
        app = self.folder / APP
        here, own = (folder / "pyproject.toml" for folder in (app, app_directory()))
        if not here.is_file() or here.read_bytes() != own.read_bytes():
            raise UserError(f"{app} is not the app of fedaf {__version__}; put {app_directory()} in its place.")
        return app

    def prepare(self) -> list[str]:
        """Check everything, say to ``flwr`` where the link is, and return the command that starts it."""
        of = self.settings
        ca, certificate, key = (_file(self.folder, name) for name in (of.ca, of.certificate, of.key))
        refuse_taken(of.port, of.host)
        self.home.mkdir(exist_ok=True)
        own = "127.0.0.1" if of.host in _EVERYWHERE else of.host
        connection = {"address": f"[{own}]:{of.port}" if ":" in own else f"{own}:{of.port}", "root-certificates": ca}
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n{toml_lines(connection)}'
        )
        return [
            *(sys.executable, *_GUARD, "superlink", "--host", of.host, "--port", str(of.port)),
            *("--ssl-ca-certfile", ca, "--ssl-certfile", certificate, "--ssl-keyfile", key),
            *("--enable-supernode-auth", "--database", str(self.folder / of.database)),
        ]


@dataclass(frozen=True)
class Site:
    """A machine with data."""

    folder: Path
    settings: NodeSettings
    name = "node"

    @classmethod
    def read(cls, folder: Path) -> "Site":
        return cls(folder.absolute(), _read(folder / NODE_FILE, NodeSettings, "the folder of a site"))

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.folder / FLOWER_HOME)

    def prepare(self) -> list[str]:
        """Check everything and return the command that starts the node."""
        of = self.settings
        ca, key = (_file(self.folder, name) for name in (of.ca, of.key))
        keys = self._node()
        node = Node.read(keys)
        if node.policy is not None:
            read_policy(node.policy)
        file = node.folder / "node-config.toml"
        file.write_text(toml_lines(keys))
        (port,) = free_ports(1)  # for programs of the node's own, on this machine
        return [
            *(sys.executable, *_GUARD, "supernode", "--superlink", of.superlink, "--root-certificates", ca),
            *("--auth-supernode-private-key", key, "--max-wait-time", str(of.wait)),
            *("--host", "127.0.0.1", "--port", str(port), "--node-config", str(file)),
        ]

    def _node(self) -> dict[str, str | int]:
        """The table of the node, with paths that hold wherever its programs run."""
        keys = {"state-dir": "state", **self.settings.node}
        for name in ("state-dir", "data-dir", "policy"):
            if isinstance(path := keys.get(name), str) and not (name == "policy" and path == "default"):
                keys[name] = str(self.folder / path)
        kind, _, path = str(keys.get("data", "")).partition(":")
        if kind in ("folder", "npz") and path:
            keys["data"] = f"{kind}:{self.folder / path}"
            if not (self.folder / path).exists():
                raise UserError(
                    f"data of {self.folder / NODE_FILE} is {kind}:{path}, which does not exist; name yours."
                )
        return keys


def toml_lines(values: dict[str, Any]) -> str:
    """A flat table as TOML."""
    return "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())


def _read(path: Path, model: type[_Settings], kind: str) -> _Settings:
    if not path.is_file():
        raise UserError(f"{path.parent} is not {kind}: it has no {path.name}; fedaf deploy init makes one.")
    return configuration.read_file(path, model, what="file")


def _file(folder: Path, name: str) -> str:
    path = folder / name
    if not path.is_file():
        raise UserError(f"{path} is missing; the README of the deployment says where it comes from.")
    return str(path)
