"""The states of one client on its own disk, one for each run it takes part in."""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import safetensors

from fedaf.client.state import ClientState
from fedaf.protocol import Refused, UserError

_KEPT = 20  # runs
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class StateFolder:
    """Use it ``locked``: two processes that work for one client must not forget what the other did."""

    path: Path

    @contextmanager
    def locked(self, *, seconds: float | None) -> Iterator[None]:
        """Wait until no other process works for this client, or raise ``Refused``."""
        give_up = time.monotonic() + seconds if seconds is not None else None
        lock = os.open(self.path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            while not _taken(lock):
                if give_up is not None and time.monotonic() > give_up:
                    raise Refused(f"another process is still working in {self.path}")
                time.sleep(_POLL_SECONDS)
            yield
        finally:
            os.close(lock)

    def read(self, run: str) -> ClientState:
        """The state of a run; of one that was never here before, the count of images sent in all others."""
        with _whole(file := self._file(run)):
            state = ClientState.read(file)
        return replace(state, images_sent=max((_images_sent(each) for each in self._files()), default=0))

    def write(self, state: ClientState) -> None:
        """Replace the state of its run, and forget runs of long ago."""
        state.write(self._file(state.run))
        for old in self._files()[_KEPT:]:
            old.unlink()

    def _file(self, run: str) -> Path:
        """Whatever a server calls its run, a plain name."""
        return self.path / f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.safetensors"

    def _files(self) -> list[Path]:
        """Newest first: the one that holds the count of all images sent is always among those kept."""
        return sorted(self.path.glob("*.safetensors"), key=lambda file: file.stat().st_mtime_ns, reverse=True)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    try:
        yield
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise UserError(
            f"{file} is damaged ({error}), and this client no longer knows what it sent and kept; bring the file back."
        ) from error


def _images_sent(file: Path) -> int:
    with _whole(file), safetensors.safe_open(file, framework="pt") as opened:
        return int(opened.get_tensor("images_sent"))
