"""The config of a node (``flower-supernode --node-config``): its client id, its data, its policy.

This module does not import PyTorch, so that a node can identify itself quickly.
"""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedaf.common.naming import nearest
from fedaf.errors import UserError

_KEYS = {
    "client-id": str,
    "data": str,
    "state-dir": str,
    "data-dir": str,
    "policy": str,
    "threads": int,
    "device": str,
    "model": str,
}
_NEEDED = ("client-id", "data", "state-dir")
_KINDS = ("npz", "folder", "partition")


def is_client_id(given: str) -> bool:
    """Return whether this is a valid client id. It becomes a file name on both sides and appears in logs."""
    return re.fullmatch(r"[\w-][\w.-]{0,63}", given) is not None


@dataclass(frozen=True)
class Node:
    """The config of one node.

    Args:
        client: The client id.
        data: ``npz:FILE``, ``folder:DIR`` or, for trials, ``partition:N``: client N of the run's own split.
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
        for key in given:
            if key not in _KEYS:
                raise UserError(
                    f"the node config has an unknown key {key!r}{nearest(key, _KEYS)}; {_expected()}.",
                    code="FEDAF-NODE-CONFIG",
                )
        for key in _NEEDED:
            if key not in given:
                raise UserError(f"the node config has no {key!r}; {_expected()}.", code="FEDAF-NODE-CONFIG")
        for key, value in given.items():
            kind = _KEYS[key]
            if type(value) is not kind and not (key == "client-id" and type(value) is int):
                raise UserError(
                    f"{key} is {value!r} in the node config; expected {'an integer' if kind is int else 'a string'}.",
                    code="FEDAF-NODE-CONFIG",
                )
        values = {key: _KEYS[key](value) for key, value in given.items()}
        if not is_client_id(values["client-id"]):
            raise UserError(
                f"client-id is {values['client-id']!r:.80} in the node config; expected at most 64 letters, digits, "
                "'.', '_' and '-'.",
                code="FEDAF-NODE-CLIENT-ID",
            )
        kind, _, what = values["data"].partition(":")
        if kind not in _KINDS or not what or (kind == "partition" and not what.isdecimal()):
            raise UserError(
                f"data is {values['data']!r} in the node config; expected npz:FILE, folder:DIR or partition:N.",
                code="FEDAF-NODE-DATA",
            )
        if values.get("threads", 1) < 1:
            raise UserError(
                f"threads is {values['threads']} in the node config; expected at least 1.", code="FEDAF-NODE-CONFIG"
            )
        return cls(
            client=values["client-id"],
            data=values["data"],
            state_dir=Path(values["state-dir"]),
            data_dir=Path(values.get("data-dir", "data")),
            policy=values.get("policy"),
            threads=values.get("threads"),
            device=values.get("device"),
            model=values.get("model"),
        )

    @property
    def folder(self) -> Path:
        """The folder of this client's state; created if missing."""
        folder = self.state_dir / self.client
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"state-dir {self.state_dir} cannot be written ({error}); choose a folder that can.",
                code="FEDAF-NODE-STATE-DIR",
            ) from error
        return folder

    def identity(self) -> str:
        """Return a token from this client's disk: the same when the node reconnects, different for any other node."""
        file = self.folder / "identity"
        if not file.exists():
            unfinished = file.with_suffix(f".{uuid.uuid4().hex}")
            unfinished.write_text(uuid.uuid4().hex)
            unfinished.replace(file)
        return file.read_text().strip()[:64]


def _expected() -> str:
    optional = ", ".join(key for key in _KEYS if key not in _NEEDED)
    return f"expected {', '.join(_NEEDED)} and optionally {optional}"
