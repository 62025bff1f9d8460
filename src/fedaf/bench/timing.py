"""Measurements of ``fedaf bench``: time, memory, and the peak performance of the device."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

import torch

from fedaf.engine.allocation import return_free_memory

#: A function to be timed.
Action = Callable[[], object]

#: Performs an action and returns its seconds.
Clock = Callable[[], float]

_PEAK_REPEATS = 5
_FEWEST_REPEATS = 2


@dataclass(frozen=True)
class Timing:
    """Median time of a call in seconds."""

    ours: float
    reference: float


@dataclass(frozen=True)
class Peaks:
    """Peak performance, from a few large matrix products and copies: FLOP/s, and bytes read and written per second."""

    flop: float
    bytes: float

    def or_better(self, other: "Peaks") -> "Peaks":
        return Peaks(max(self.flop, other.flop), max(self.bytes, other.bytes))


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def interleaved(ours: Clock, reference: Clock, repeats: int, *, limit: float = inf) -> Timing:
    """Time two actions in turn, so that a change in the machine's speed affects both.

    Both must have been called before, so that compilation and loading are not timed.

    Args:
        ours: Times the first action.
        reference: Times the second action.
        repeats: How often both are timed.
        limit: Seconds after which there are no further repeats, if there were at least two.
    """
    seconds: list[tuple[float, float]] = []
    while len(seconds) < repeats and (len(seconds) < _FEWEST_REPEATS or sum(map(sum, seconds)) < limit):
        seconds.append((ours(), reference()))
    return Timing(*(median(column) for column in zip(*seconds, strict=True)))


def timed(action: Action, device: torch.device) -> float:
    """Return the seconds until the device has finished the action."""
    synchronise(device)
    started = time.perf_counter()
    action()
    synchronise(device)
    return time.perf_counter() - started


def measure_peaks(device: torch.device, dtype: torch.dtype, *, side: int, copied: int) -> Peaks:
    """Measure the peaks with products of matrices [side, side] and copies of ``copied`` bytes."""
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(left)
    source = torch.zeros(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def best(action: Action) -> float:
        return min(timed(action, device) for _ in range(_PEAK_REPEATS + 1))  # the first warms up

    return Peaks(
        flop=2 * side**3 / best(lambda: torch.mm(left, right, out=product)),
        bytes=2 * copied / best(lambda: target.copy_(source)),
    )


class MemoryMeter:
    """The peak memory since it was created, in bytes, beyond what was in use then.

    On CUDA this is what PyTorch allocates, on Linux the memory of the process.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()  # unreachable objects must not count as in use
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before: int | None = torch.cuda.memory_allocated(device)
        else:
            self._before = _resident("VmRSS") if device.type == "cpu" and _reset_peak() else None

    def read(self) -> int | None:
        """Return the bytes, or ``None`` if this platform does not report them."""
        if self._before is None:
            return None
        cuda = self._device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._device) if cuda else _resident("VmHWM")
        return peak - self._before if peak is not None and peak > self._before else None


def _reset_peak() -> bool:
    """Return free memory to Linux, whose reuse it would not count, and reset the peak of this process."""
    if not return_free_memory():
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux
        return False
    return True


def _resident(name: str) -> int | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return None
