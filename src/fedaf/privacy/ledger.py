"""A site's ledger of noisy releases: what each one cost, and the releases themselves.

The ledger belongs to the site, not to a run and not to a state of the data: a new run, or one more image, starts no new
budget. A release is paid for before its noise is drawn. A crash in between therefore costs budget, and never gives
any away. A stored release can be used again for nothing, because everything that is computed from it is
post-processing.
"""

import fcntl
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch

from fedaf.common.files import make_durable_folder, write_durably
from fedaf.privacy.accountant import compose, epsilon_of
from fedaf.privacy.ledger_file import (
    RELEASE_SUFFIX,
    RELEASES,
    LedgerEntry,
    damaged,
    read_entries,
    spent_mu,
    write_entries,
)
from fedaf.protocol import Guarantee, Refused, Tensors, UserError, pack, to_cpu
from fedaf.protocol.payload import unpack

_RELEASE_ID = re.compile(r"[0-9a-f]{8,128}")
_ROUNDING = 1e-9  # of epsilon: a run may spend exactly what is left
_LONGEST_RUN_NAME = 200  # servers choose it


@dataclass(frozen=True)
class Limit:
    """How much a site may release over all runs.

    Args:
        max_epsilon: The highest epsilon of all releases together; ``None``: no limit.
        max_delta: The delta that it refers to.
    """

    max_epsilon: float | None
    max_delta: float


class Ledger:
    """The releases of one site. Several processes may use the same folder.

    Args:
        folder: The folder of the ledger, which ``obtain`` creates. It must be kept: a site without its ledger does not
            know what it released.

    Example:
        >>> ledger = Ledger(Path("site/privacy"))
        >>> ledger.obtain("0123abcd", mu=0.5, make=noisy_sums, run="study", round=1, limit=Limit(4.0, 1e-5))
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def entries(self) -> list[LedgerEntry]:
        """All releases that were paid for, oldest first."""
        return read_entries(self.folder)

    def spent_mu(self) -> float:
        """Return the parameter mu of all releases together."""
        return spent_mu(self.entries)

    def spent_epsilon(self, delta: float) -> float:
        """Return the epsilon of all releases together.

        Args:
            delta: The delta that it refers to.
        """
        return epsilon_of(self.spent_mu(), delta)

    def obtain(
        self,
        release_id: str,
        *,
        mu: float,
        make: Callable[[], Tensors],
        prepare: Callable[[], None] | None = None,
        run: str,
        round: int,
        limit: Limit | None,
        asked: Guarantee | None = None,
        simulated: bool = False,
    ) -> Tensors:
        """Return a stored release, or pay for a new one, make it and store it.

        Other processes wait while one of them makes a release. If ``prepare`` fails, or a deadline ends it, nothing is
        spent. If ``make`` fails, or the process dies, the budget stays spent, and the next call pays again.

        Args:
            release_id: What identifies the release: a hexadecimal digest of what was asked for, not of private data.
            mu: The parameter of the release: what it costs.
            make: Draws the noise and returns the release. It is not called for a stored release, nor over the limit.
            prepare: Does what takes long and draws no noise, before the release is paid for. It is not called for a
                stored release, nor over the limit.
            run: The name of the run, for the record.
            round: The round, for the record.
            limit: The most that the site may release; ``None``: no limit.
            asked: The guarantee of the run that asks, for the record.
            simulated: Whether the noise comes from a seed, so that the release is not private.

        Returns:
            The release, on the CPU.

        Raises:
            Refused: The release would exceed the limit.
            UserError: A file of the ledger is damaged, or the stored release was made with simulated noise and a
                private one is asked for, or the other way round.
        """
        if not _RELEASE_ID.fullmatch(release_id):
            raise ValueError(f"the release id is {release_id!r}; expected 8 to 128 hexadecimal digits in lower case")
        if not 0 < mu < math.inf:
            raise ValueError(f"mu of a release is {mu}; expected a finite number above 0")
        with self._locked():
            entries = self.entries
            file = self.folder / RELEASES / f"{release_id}{RELEASE_SUFFIX}"
            if file.exists():
                return _stored(file, [entry for entry in entries if entry.release == release_id], simulated)
            if limit is not None:
                _check(limit, spent_mu(entries), mu)
            if prepare is not None:
                prepare()
            entry = LedgerEntry(
                time=datetime.now(UTC).isoformat(timespec="seconds"),
                run=run[:_LONGEST_RUN_NAME],
                round=round,
                release=release_id,
                mu=mu,
                epsilon=asked.epsilon if asked else None,
                delta=asked.delta if asked else None,
                simulated=simulated,
            ).chained(entries[-1] if entries else None)
            write_entries(self.folder, [*entries, entry])
            release = to_cpu(make())
            write_durably(file, pack(release, {"entry": entry.chain, "sha256": _digest(release)}))
            return release

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_durable_folder(self.folder / RELEASES)
        lock = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _check(limit: Limit, spent: float, mu: float) -> None:
    """Raise ``Refused`` if a release of parameter ``mu`` exceeds the limit."""
    if limit.max_epsilon is None:
        return
    before, asked, after = (epsilon_of(each, limit.max_delta) for each in (spent, mu, compose(spent, mu)))
    if after > limit.max_epsilon + _ROUNDING:
        problem = (
            f"this site has spent epsilon {before:.4g} at delta {limit.max_delta:g}; the release costs {asked:.4g} "
            f"alone, and {after:.4g} together with what is spent, which is over max_epsilon {limit.max_epsilon:g} of "
            "the policy; ask for a smaller privacy.epsilon, or raise max_epsilon"
        )
        raise Refused(problem, code="FEDAF-PRIVACY-BUDGET")


def _stored(file: Path, entries: list[LedgerEntry], simulated: bool) -> Tensors:
    """Read a stored release, and check it against the entry that paid for it."""
    try:
        tensors, metadata = unpack(file.read_bytes())
    except Refused as error:
        raise damaged(file, error) from error
    if metadata.get("sha256") != _digest(tensors):
        raise damaged(file, "its content does not fit its hash")
    paid = [entry for entry in entries if entry.chain == metadata.get("entry")]
    if not paid:
        raise damaged(file, "the ledger has no entry that paid for it")
    if paid[0].simulated != simulated:
        noise = ("noise from the operating system", "simulated noise, which is not private")
        what = f"the stored release {file.name} has {noise[paid[0].simulated]}; {noise[simulated]} is asked for"
        raise UserError(f"{what}. Use another ledger for simulations.", code="FEDAF-PRIVACY-LEDGER-SIMULATED")
    return tensors


def _digest(tensors: Tensors) -> str:
    """Return a hash of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
