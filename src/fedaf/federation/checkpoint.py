"""Checkpoints: everything the next round depends on, written so that a kill at any moment leaves a whole one.

A checkpoint is a folder ``round-N`` that appears under its name only when complete; ``LATEST`` names the newest
and is replaced atomically.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedaf.common.files import write_atomically
from fedaf.protocol import Key, ServerState, Tensors, UserError, pack, prefixed, select

LATEST = "LATEST"


@dataclass(frozen=True)
class Checkpoint:
    """``run`` names the run to its clients for as long as it lives, over resumes too."""

    run: str
    server: ServerState
    accepted: Mapping[str, int]
    clients: Mapping[str, Tensors]


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write a checkpoint and forget all but the ``keep`` newest (0 keeps all)."""
    server = checkpoint.server
    name = f"round-{server.round}"
    temporary = folder / f"{name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    write_atomically(temporary / "model.safetensors", pack(server.model))
    write_atomically(temporary / "server.safetensors", pack(_flatten(server.memory)))
    write_atomically(temporary / "clients.safetensors", pack(_flatten(checkpoint.clients)))
    facts = {
        "run": checkpoint.run,
        "round": server.round,
        "key": server.key.value,
        "accepted": dict(checkpoint.accepted),
    }
    write_atomically(temporary / "state.json", json.dumps(facts))
    shutil.rmtree(folder / name, ignore_errors=True)  # left by a run that was killed before it named it LATEST
    temporary.rename(folder / name)
    write_atomically(folder / LATEST, name)
    if keep:
        for old in sorted(folder.glob("round-*"), key=_round_of)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> Checkpoint:
    """The checkpoint that ``LATEST`` names."""
    try:
        latest = folder / (folder / LATEST).read_text().strip()
        facts = json.loads((latest / "state.json").read_text())
        run = str(facts["run"])
        server = ServerState(
            key=Key(int(facts["key"])),
            model=safetensors.torch.load_file(latest / "model.safetensors"),
            round=int(facts["round"]),
            memory=_unflatten(safetensors.torch.load_file(latest / "server.safetensors")),
        )
        clients = _unflatten(safetensors.torch.load_file(latest / "clients.safetensors"))
        accepted = {str(client): int(round) for client, round in facts["accepted"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{folder} has no checkpoint to resume from ({type(error).__name__}: {error}).",
            code="FEDAF-RUN-NO-CHECKPOINT",
        ) from error
    return Checkpoint(run, server, accepted, clients)


def _flatten(records: Mapping[str, Tensors]) -> dict[str, Tensor]:
    for record in records:
        if "/" in record:
            raise ValueError(f"the record {record!r} has a '/' in its name, which separates records from tensors")
    return {name: t for record, tensors in records.items() for name, t in prefixed(f"{record}/", tensors).items()}


def _unflatten(tensors: Tensors) -> dict[str, Tensors]:
    return {record: select(tensors, f"{record}/") for record in {name.partition("/")[0] for name in tensors}}


def _round_of(path: Path) -> int:
    digits = path.name.removeprefix("round-")
    return int(digits) if digits.isdigit() else -1
