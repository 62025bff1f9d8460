"""The config of a node (``flower-supernode --node-config``): its client id, its data, its policy.

This module does not import PyTorch, so that a node can identify itself quickly.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaf.common.naming import nearest
from fedaf.errors import UserError

_NEEDED = ("client-id", "data", "state-dir")
_OPTIONAL = ("data-dir", "policy", "threads", "device", "model")
_EXPECTED = f"expected {', '.join(_NEEDED)} and optionally {', '.join(_OPTIONAL)}"
_DATA = re.compile(r"(npz|folder|parquet):.+|partition:\d+", re.DOTALL)


def is_client_id(given: str) -> bool:
    """Return whether this is a valid client id. It becomes a file name on both sides and appears in logs."""
    return re.fullmatch(r"[\w-][\w.-]{0,63}", given) is not None


@dataclass(frozen=True)
class Node:
    """The config of one node.

    Args:
        client: The client id.
        data: ``npz:FILE``, ``folder:DIR``, ``parquet:DIR`` or, for trials, ``partition:N``: client N of the run's own
            split.
        state_dir: Where the client keeps its state.
        data_dir: Where data sets are, for ``partition:N``.
        policy: A TOML file with the client's policy.
        threads: Number of CPU threads.
        device: Overrides the run's device.
        model: A custom model (``module:function``) that this node agrees to build.
    """

    client: str
    data: str
    state_dir: Path
    data_dir: Path = Path("data")
    policy: str | None = None
    threads: int | None = None
    device: str | None = None
    model: str | None = None

    @classmethod
    def read(cls, given: Mapping[str, object]) -> "Node":
        """Read the config that Flower passes to the node's app.

        Raises:
            UserError: A key or value is missing or wrong.
        """
        known = (*_NEEDED, *_OPTIONAL)
        for key in given:
            if key not in known:
                what = f"the node config has an unknown key {key!r}{nearest(key, known)}"
                raise UserError(f"{what}; {_EXPECTED}.", code="FEDAF-NODE-CONFIG")
        for key in _NEEDED:
            if key not in given:
                raise UserError(f"the node config has no {key!r}; {_EXPECTED}.", code="FEDAF-NODE-CONFIG")
        values: dict[str, Any] = dict(given)
        if type(values["client-id"]) is int:
            values["client-id"] = str(values["client-id"])
        for key, value in values.items():
            if key == "threads" and (type(value) is not int or value < 1):
                raise _wrong(key, value, "an integer of at least 1")
            if key != "threads" and not isinstance(value, str):
                raise _wrong(key, value, "a string")
        client, data = values.pop("client-id"), values["data"]
        if not is_client_id(client):
            raise _wrong("client-id", client, "at most 64 letters, digits, '.', '_' and '-'", "FEDAF-NODE-CLIENT-ID")
        if not _DATA.fullmatch(data):
            raise _wrong("data", data, "npz:FILE, folder:DIR, parquet:DIR or partition:N", "FEDAF-NODE-DATA")
        state_dir, data_dir = Path(values.pop("state-dir")), Path(values.pop("data-dir", "data"))
        return cls(client, state_dir=state_dir, data_dir=data_dir, **values)

    @property
    def folder(self) -> Path:
        """The folder of this client's state; created if missing."""
        folder = self.state_dir / self.client
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"state-dir {self.state_dir} cannot be written ({error}); choose a folder that can."
            raise UserError(what, code="FEDAF-NODE-STATE-DIR") from error
        return folder

    def identity(self) -> str:
        """Return a token from this client's disk: the same when the node reconnects, different for any other node."""
        file = self.folder / "identity"
        if not file.exists():
            unfinished = file.with_suffix(f".{uuid.uuid4().hex}")
            unfinished.write_text(uuid.uuid4().hex)
            unfinished.replace(file)
        return file.read_text().strip()[:64]


def _wrong(key: str, value: object, expected: str, code: str = "FEDAF-NODE-CONFIG") -> UserError:
    return UserError(f"{key} is {value!r:.80} in the node config; expected {expected}.", code=code)
