"""How ``fedaf bench`` measures: seconds, memory, and what the device can do at most."""

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

#: What is timed.
Action = Callable[[], object]

_PEAK_REPEATS = 5


@dataclass(frozen=True)
class Timing:
    """Median seconds of a call."""

    ours: float
    reference: float


@dataclass(frozen=True)
class Peaks:
    """The fastest of a few large matrix products and copies: operations and bytes (read and written) a second."""

    flop: float
    bytes: float

    def or_better(self, other: "Peaks") -> "Peaks":
        return Peaks(max(self.flop, other.flop), max(self.bytes, other.bytes))


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def interleaved(ours: Action, reference: Action, repeats: int, *, device: torch.device) -> Timing:
    """Call both in turn, so that a machine that slows down slows both down. Both are warm: their first calls, which
    build and load what they need, have been made."""
    seconds = [(timed(ours, device), timed(reference, device)) for _ in range(repeats)]
    return Timing(*(median(column) for column in zip(*seconds, strict=True)))


def timed(action: Action, device: torch.device) -> float:
    """Seconds until the device is done with it."""
    synchronise(device)
    started = time.perf_counter()
    action()
    synchronise(device)
    return time.perf_counter() - started


def measure_peaks(device: torch.device, dtype: torch.dtype, *, side: int, copied: int) -> Peaks:
    """Of products of square matrices with this ``side`` and copies of so many bytes, under the TF32 flags as set."""
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
    """Bytes needed at most since it was made, beyond those in use then; ``None`` where that cannot be told. On CUDA
    what PyTorch allocates, on Linux the memory of the process."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()  # what nobody uses any longer is not in use
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before: int | None = torch.cuda.memory_allocated(device)
        else:
            self._before = _resident("VmRSS") if device.type == "cpu" and _reset_peak() else None

    def read(self) -> int | None:
        if self._before is None:
            return None
        cuda = self._device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._device) if cuda else _resident("VmHWM")
        return peak - self._before if peak is not None and peak > self._before else None


def _reset_peak() -> bool:
    """Give back what is free, whose use would not be seen, and let Linux forget how much this process needed before."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (AttributeError, OSError, TypeError):  # not Linux, or not with glibc
        return False
    return True


def _resident(name: str) -> int | None:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return None
