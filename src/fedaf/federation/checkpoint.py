"""Checkpoints: everything the next round depends on, safe against a kill at any moment and against damaged files.

A checkpoint is a folder ``round-N``. It gets this name only when it is complete. Its ``manifest.json`` is written last
and has the SHA-256 of every other file. The file ``LATEST`` names the newest checkpoint and is replaced atomically.

A run is resumed from that checkpoint or, if it is damaged, from the newest intact one before it. If ``LATEST`` is lost,
the newest checkpoint is found by its name.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedaf.common.files import write_atomically
from fedaf.protocol import Key, Method, ServerState, Tensors, UserError, pack, prefixed, select
from fedaf.protocol.records import from_tensors, to_tensors

LATEST = "LATEST"
MANIFEST = "manifest.json"

log = logging.getLogger(__name__)

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """What a run continues from.

    Args:
        run: Name of the run, by which clients know it, also after a resume.
        server: The server's state after a round.
        accepted: For each client, the last round in which its replies were accepted.
        clients: State of the clients that run in this process, by client.
        method_version: Version of the method that began the run.
        publishable: For each client that replied, whether all its replies allow its condensed images to be published;
            empty in checkpoints of older versions of fedaf.
    """

    run: str
    server: ServerState
    accepted: Mapping[str, int]
    clients: Mapping[str, Tensors]
    method_version: int = 1
    publishable: Mapping[str, bool] = field(default_factory=dict)


def save(folder: Path, checkpoint: Checkpoint, *, keep: int) -> None:
    """Write a checkpoint and delete all but the newest ``keep`` (0 keeps all)."""
    server = checkpoint.server
    name = f"round-{server.round}"
    temporary = folder / f"{name}.part"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    facts = {"run": checkpoint.run, "round": server.round, "key": server.key.value}
    facts |= {"accepted": dict(checkpoint.accepted), "method_version": checkpoint.method_version}
    facts |= {"publishable": dict(checkpoint.publishable)}
    files = {
        "model.safetensors": pack(server.model),
        "server.safetensors": pack(to_tensors(server.memory)),
        "clients.safetensors": pack(_flatten(checkpoint.clients)),
        "state.json": json.dumps(facts).encode(),
    }
    for file, content in files.items():
        write_atomically(temporary / file, content)
    digests = {file: hashlib.sha256(content).hexdigest() for file, content in files.items()}
    write_atomically(temporary / MANIFEST, json.dumps({"round": server.round, "sha256": digests}, indent=2))
    shutil.rmtree(folder / name, ignore_errors=True)  # exists if a run was killed before it wrote LATEST
    temporary.rename(folder / name)
    write_atomically(folder / LATEST, name)
    if keep:
        for old in sorted(folder.glob("round-*"), key=_round_of)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)


def exists(folder: Path) -> bool:
    """Return whether a run has a checkpoint, readable or not."""
    return (folder / LATEST).is_file() or any(_newest_first(folder))


def load(folder: Path, method: Method | None) -> Checkpoint:
    """Read the newest checkpoint that is not damaged. A damaged one that is newer is named in a warning.

    Args:
        folder: The run directory.
        method: The run's method; ``None`` reads only the models, of any version of the method.

    Raises:
        UserError: There is no readable checkpoint, or the run was begun by another version of the method.
    """
    problems: list[str] = []
    for saved in _newest_first(folder):
        try:
            _verify(saved)
            found = _read(saved, method)
        except _UNREADABLE as error:
            problems.append(f"{saved.name}: {error if isinstance(error, _Damaged) else _named(error)}")
            continue
        if problems:
            lost = "; ".join(problems)
            log.warning(
                "a checkpoint in %s is damaged (%s); continuing after round %d", folder, lost, found.server.round
            )
        return found
    advice = "restore the folder from a backup, or start a new run"
    what = f"{folder} has no checkpoint to resume from ({'; '.join(problems) or 'there is no folder round-N'})"
    raise UserError(f"{what}; {advice}.", code="FEDAF-RUN-NO-CHECKPOINT")


def not_publishable(folder: Path) -> set[str]:
    """Return the clients of a run that do not allow their condensed images to be published."""
    for saved in _newest_first(folder):
        try:
            answers = json.loads((saved / "state.json").read_text()).get("publishable", {})
            return {str(client) for client, answer in answers.items() if answer is not True}
        except _UNREADABLE:
            continue
    return set()


class _Damaged(ValueError):
    """A file of a checkpoint is not what was written."""


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _newest_first(folder: Path) -> Iterator[Path]:
    """Yield the checkpoint that ``LATEST`` names and those before it; all of them if ``LATEST`` names none."""
    latest = _latest(folder)
    for path in sorted(folder.glob("round-*"), key=_round_of, reverse=True):
        if _round_of(path) >= 0 and path.is_dir() and (latest is None or _round_of(path) <= latest):
            yield path


def _latest(folder: Path) -> int | None:
    """Return the round of the checkpoint that ``LATEST`` names; ``None`` if there is none."""
    try:
        named = folder / (folder / LATEST).read_text().strip()
    except (OSError, ValueError):
        return None
    return _round_of(named) if _round_of(named) >= 0 and named.is_dir() else None


def _verify(saved: Path) -> None:
    """Compare every file with the manifest. Checkpoints of older versions of fedaf have none and are not compared."""
    manifest = saved / MANIFEST
    if not manifest.is_file():
        return
    for file, digest in json.loads(manifest.read_bytes())["sha256"].items():
        if not (saved / file).is_file():
            raise _Damaged(f"{file} is missing")
        if hashlib.sha256((saved / file).read_bytes()).hexdigest() != digest:
            raise _Damaged(f"{file} does not have the SHA-256 that {MANIFEST} states")


def _read(saved: Path, method: Method | None) -> Checkpoint:
    facts = json.loads((saved / "state.json").read_text())
    version = int(facts.get("method_version", 1))
    if method is not None and version != method.version:  # its memory may have another form too
        what = f"the run in {saved.parent} was begun by version {version} of its method"
        now = f"this is version {method.version}, which gives other numbers"
        raise UserError(f"{what}, and {now}; start a new run.", code="FEDAF-RUN-OTHER-VERSION")
    kept = {} if method is None else safetensors.torch.load_file(saved / "server.safetensors")
    server = ServerState(
        key=Key(int(facts["key"])),
        model=safetensors.torch.load_file(saved / "model.safetensors"),
        round=int(facts["round"]),
        memory=None if method is None or method.Memory is None else from_tensors(method.Memory, kept),
    )
    clients = _unflatten(safetensors.torch.load_file(saved / "clients.safetensors"))
    accepted = {str(client): int(round) for client, round in facts["accepted"].items()}
    publishable = {str(client): answer is True for client, answer in facts.get("publishable", {}).items()}
    return Checkpoint(str(facts["run"]), server, accepted, clients, version, publishable)


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
