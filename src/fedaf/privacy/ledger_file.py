"""The file of a site's privacy ledger: its entries, and the checks that notice damage. No PyTorch is imported.

``ledger.json`` has an entry for every release. Each entry has a hash of itself and of the entry before it, so a changed
or missing entry is noticed. Entries that are removed from the end are noticed if the releases they paid for are still
there. This protects from accidents: whoever controls the folder can write a new, shorter ledger.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedaf.common.files import write_durably
from fedaf.errors import UserError
from fedaf.privacy.accountant import compose

LEDGER, RELEASES = "ledger.json", "releases"
RELEASE_SUFFIX = ".safetensors"
_START = hashlib.sha256(b"fedaf privacy ledger").hexdigest()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class LedgerEntry(_Strict):
    """One release that a site paid for.

    Args:
        time: When, in UTC, as ISO 8601.
        run: The name that the server gave the run.
        round: The round of the run.
        release: The id of the release.
        mu: The parameter of the release, which says how much it cost.
        epsilon: Epsilon of the run that asked for it; ``None`` if it did not say.
        delta: Delta of that run.
        simulated: Whether the noise came from a seed. Such a release is not private.
        chain: The hash of this entry and of the chain before it.
    """

    time: str
    run: str
    round: int
    release: str
    mu: float = Field(gt=0)
    epsilon: float | None = None
    delta: float | None = None
    simulated: bool = False
    chain: str = ""

    def chained(self, before: "LedgerEntry | None") -> "LedgerEntry":
        """Return the entry with its hash.

        Args:
            before: The entry before it; ``None`` for the first one.
        """
        content = json.dumps(self.model_dump(exclude={"chain"}), sort_keys=True)
        link = before.chain if before else _START
        return self.model_copy(update={"chain": hashlib.sha256(f"{link}{content}".encode()).hexdigest()})


class _LedgerFile(_Strict):
    format: Literal[1] = 1
    entries: list[LedgerEntry]


def read_entries(folder: Path) -> list[LedgerEntry]:
    """Return the entries of a ledger, oldest first; none if nothing was released yet.

    Args:
        folder: The folder of the ledger.

    Raises:
        UserError: The file is damaged, or lacks an entry for a stored release.
    """
    releases = sorted((folder / RELEASES).glob("*"))  # before the entries: those of a release are written before it
    file = folder / LEDGER
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        if releases:
            raise damaged(file, "it is missing, but there are releases") from None
        return []
    try:
        entries = _LedgerFile.model_validate_json(content).entries
    except ValidationError as error:
        raise damaged(file, str(error.errors()[0]["msg"])) from error
    for number, (before, entry) in enumerate(zip([None, *entries], entries, strict=False), 1):
        if entry != entry.chained(before):
            raise damaged(file, f"entry {number} does not fit its hash")
    known = {entry.release for entry in entries}
    for release in releases:
        if release.name.partition(".")[0] not in known:
            raise damaged(file, f"it has no entry for {release.name}")
    return entries


def is_ledger(folder: Path) -> bool:
    """Return whether a folder is that of a ledger, which may be damaged.

    Args:
        folder: The folder.
    """
    return (folder / LEDGER).is_file() or any((folder / RELEASES).glob(f"*{RELEASE_SUFFIX}"))


def write_entries(folder: Path, entries: Sequence[LedgerEntry]) -> None:
    """Replace the entries of a ledger; when this returns they survive a power failure.

    Args:
        folder: The folder of the ledger, which must exist.
        entries: All entries, with their hashes.
    """
    write_durably(folder / LEDGER, _LedgerFile(entries=list(entries)).model_dump_json(indent=1).encode())


def spent_mu(entries: Iterable[LedgerEntry]) -> float:
    """Return the parameter of all releases together.

    Args:
        entries: The entries of a ledger.
    """
    return compose(*(entry.mu for entry in entries))


def damaged(file: Path, problem: object) -> UserError:
    """Return the error that a file of the ledger cannot be trusted."""
    what = f"{file} is damaged ({str(problem)[:120]}), so this site cannot know what it released"
    return UserError(f"{what}; restore the folder from a backup.", code="FEDAF-PRIVACY-LEDGER-DAMAGED")
