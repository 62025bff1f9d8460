"""What the owner of a node says of it in ``flower-supernode --node-config``: who it is, where its data and its policy
are. Read before PyTorch is loaded, so that a node can say who it is at once."""

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
    """Whether this can be the name of a client: it becomes that of files on both sides, and stands in logs."""
    return re.fullmatch(r"[\w-][\w.-]{0,63}", given) is not None


@dataclass(frozen=True)
class Node:
    """``data`` is ``npz:FILE``, ``folder:DIR`` or, for trials, ``partition:N``: the N-th client of the run's own split.
    ``model`` names a model of one's own that this node agrees to build, ``policy`` a TOML file."""

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
        """From the node config, or ``UserError`` with the first thing that is wrong."""
        for key in given:
            if key not in _KEYS:
                raise UserError(f"unknown key {key!r}{nearest(key, _KEYS)} in the node config; {_allowed()}.")
        for key in _NEEDED:
            if key not in given:
                raise UserError(f"the node config has no {key!r}; {_allowed()}.")
        for key, value in given.items():
            kind = _KEYS[key]
            if type(value) is not kind and not (key == "client-id" and type(value) is int):
                raise UserError(f"{key} is {value!r} in the node config, but must be a {_word(kind)}.")
        values = {key: _KEYS[key](value) for key, value in given.items()}
        if not is_client_id(values["client-id"]):
            raise UserError(
                f"client-id is {values['client-id']!r:.80}; allowed are letters, digits, '.', '_' and '-', at most 64."
            )
        kind, _, what = values["data"].partition(":")
        if kind not in _KINDS or not what or (kind == "partition" and not what.isdecimal()):
            raise UserError(
                f"data is {values['data']!r} in the node config; allowed is npz:FILE, folder:DIR, partition:N."
            )
        if values.get("threads", 1) < 1:
            raise UserError(f"threads is {values['threads']} in the node config; it must be at least 1.")
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
        """Where this client keeps what it must remember; made where there is none."""
        folder = self.state_dir / self.client
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"state-dir {self.state_dir} cannot be written ({error}); name a folder that can."
            ) from error
        return folder

    def identity(self) -> str:
        """A token on this client's disk that tells a node that came back from another that took its name."""
        file = self.folder / "identity"
        if not file.exists():
            unfinished = file.with_suffix(f".{uuid.uuid4().hex}")
            unfinished.write_text(uuid.uuid4().hex)
            unfinished.replace(file)
        return file.read_text().strip()[:64]


def _allowed() -> str:
    return f"needed are {', '.join(_NEEDED)}, allowed {', '.join(key for key in _KEYS if key not in _NEEDED)}"


def _word(kind: type) -> str:
    return "whole number" if kind is int else "string"
