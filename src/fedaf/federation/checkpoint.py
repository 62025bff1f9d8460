"""Checkpoints: everything the next round depends on, safe against a kill at any moment.

A checkpoint is a folder ``round-N``. It gets this name only when it is complete. The file ``LATEST`` names the newest
checkpoint and is replaced atomically.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedaf.common.files import write_atomically
from fedaf.protocol import Key, Method, ServerState, Tensors, UserError, pack, prefixed, select
from fedaf.protocol.records import from_tensors, to_tensors

LATEST = "LATEST"


@dataclass(frozen=True)
class Checkpoint:
    """What a run continues from.

    Args:
        run: Name of the run, by which clients know it, also after a resume.
        server: The server's state after a round.
        accepted: For each client, the last round in which its replies were accepted.
        clients: State of the clients that run in this process, by client.
        method_version: Version of the method that began the run.
    """

    run: str
    server: ServerState
    accepted: Mapping[str, int]
    clients: Mapping[str, Tensors]
    method_version: int = 1


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write a checkpoint and delete all but the newest ``keep`` (0 keeps all)."""
    server = checkpoint.server
    name = f"round-{server.round}"
    temporary = folder / f"{name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    write_atomically(temporary / "model.safetensors", pack(server.model))
    write_atomically(temporary / "server.safetensors", pack(to_tensors(server.memory)))
    write_atomically(temporary / "clients.safetensors", pack(_flatten(checkpoint.clients)))
    facts = {"run": checkpoint.run, "round": server.round, "key": server.key.value}
    facts |= {"accepted": dict(checkpoint.accepted), "method_version": checkpoint.method_version}
    write_atomically(temporary / "state.json", json.dumps(facts))
    shutil.rmtree(folder / name, ignore_errors=True)  # exists if a run was killed before it wrote LATEST
    temporary.rename(folder / name)
    write_atomically(folder / LATEST, name)
    if keep:
        for old in sorted(folder.glob("round-*"), key=_round_of)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)


def load(folder: Path, method: Method | None) -> Checkpoint:
    """Read the checkpoint that ``LATEST`` names.

    Args:
        folder: The run directory.
        method: The run's method; ``None`` reads only the models, of any version of the method.

    Raises:
        UserError: There is no readable checkpoint, or the run was begun by another version of the method.
    """
    try:
        latest = folder / (folder / LATEST).read_text().strip()
        facts = json.loads((latest / "state.json").read_text())
        version = int(facts.get("method_version", 1))
        if method is not None and version != method.version:  # its memory may have another form too
            what = f"the run in {folder} was begun by version {version} of its method"
            now = f"this is version {method.version}, which gives other numbers"
            raise UserError(f"{what}, and {now}; start a new run.", code="FEDAF-RUN-OTHER-VERSION")
        kept = {} if method is None else safetensors.torch.load_file(latest / "server.safetensors")
        server = ServerState(
            key=Key(int(facts["key"])),
            model=safetensors.torch.load_file(latest / "model.safetensors"),
            round=int(facts["round"]),
            memory=None if method is None or method.Memory is None else from_tensors(method.Memory, kept),
        )
        clients = _unflatten(safetensors.torch.load_file(latest / "clients.safetensors"))
        accepted = {str(client): int(round) for client, round in facts["accepted"].items()}
        return Checkpoint(str(facts["run"]), server, accepted, clients, version)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        what = f"{folder} has no checkpoint to resume from ({type(error).__name__}: {error})."
        raise UserError(what, code="FEDAF-RUN-NO-CHECKPOINT") from error


def _flatten(records: Mapping[str, Tensors]) -> dict[str, Tensor]:
    for record in records:
        if "/" in record:
            raise ValueError(f"the name {record!r} contains '/', which separates names of tensors")
    return {name: t for record, tensors in records.items() for name, t in prefixed(f"{record}/", tensors).items()}


def _unflatten(tensors: Tensors) -> dict[str, Tensors]:
    return {record: select(tensors, f"{record}/") for record in {name.partition("/")[0] for name in tensors}}


def _round_of(path: Path) -> int:
    digits = path.name.removeprefix("round-")
    return int(digits) if digits.isdigit() else -1
