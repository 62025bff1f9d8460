"""One client's states on its disk, one file per run."""

import fcntl
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors.torch

from fedaf.client.state import ClientState, read_images_sent
from fedaf.common.files import write_atomically
from fedaf.protocol import Refused, UserError, pack

_KEPT_RUNS = 20
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class StateFolder:
    """The folder of one client's states. Read and write only while ``locked``: a client may have several processes."""

    path: Path

    @contextmanager
    def locked(self, *, seconds: float | None) -> Iterator[None]:
        """Hold the folder's lock inside a block.

        Raises:
            Refused: Another process held the lock for ``seconds``.
        """
        give_up = time.monotonic() + seconds if seconds is not None else None
        lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            while not _locked(lock):
                if give_up is not None and time.monotonic() > give_up:
                    raise Refused(f"another process is still working in {self.path}", code="FEDAF-CLIENT-BUSY")
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(lock)

    def read(self, run: str) -> ClientState:
        """Return the state of a run. A new run has only the numbers of images sent in other runs."""
        with _undamaged(file := self._file(run)):
            state = ClientState.from_tensors(safetensors.torch.load_file(file)) if file.exists() else ClientState()
        sent: Counter[int] = Counter()
        for each in self._files():
            sent |= _images_sent(each)  # the larger number of each class: a later file counts what an earlier one did
        return replace(state, images_sent=dict(sent))

    def write(self, state: ClientState) -> None:
        """Replace the state of a run, and delete the oldest states."""
        write_atomically(self._file(state.run), pack(state.to_tensors()))
        for old in self._files()[_KEPT_RUNS:]:
            old.unlink()

    def _file(self, run: str) -> Path:
        """Return a safe file name for the name that a server gave its run."""
        return self.path / f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.safetensors"

    def _files(self) -> list[Path]:
        """Return the files, newest first. The newest one has the count of all images sent, so it is never deleted."""
        return sorted(self.path.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns, reverse=True)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _undamaged(file: Path) -> Iterator[None]:
    try:
        yield
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        what = f"{file} is damaged ({error}), so this client cannot know what it sent"
        raise UserError(f"{what}; restore the file from a backup.", code="FEDAF-CLIENT-STATE-DAMAGED") from error


def _images_sent(file: Path) -> Counter[int]:
    with _undamaged(file), safetensors.safe_open(file, framework="pt") as opened:
        return Counter(read_images_sent(opened.get_tensor("images_sent")))
