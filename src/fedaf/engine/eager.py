"""The eager engine: plain PyTorch, in chunks that fit a memory budget. Other engines are tested against it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Self, TypeVar

import torch

from fedaf.engine.precision import Precision, cast, settings
from fedaf.engine.side_by_side import side_by_side
from fedaf.protocol import DeadlineExceeded, generators_released

_CPU_BUDGET = 128 << 20  # bytes; leaves room for everything else on a small machine
_CUDA_SHARE = 0.5  # of the memory that is free
_MOST_AT_ONCE = 4  # clients on a CPU; each needs memory for its training steps

Item = TypeVar("Item")
Result = TypeVar("Result")


def _silent(done: int, total: int) -> None:
    return None


@dataclass(frozen=True)
class EagerEngine:
    """Implements ``fedaf.protocol.Engine``. Custom engines derive from this class.

    Args:
        device: The device that it computes on.
        memory_budget: Bytes that one chunk of work may use; ``None`` chooses by device.
        precision: The precision of networks under ``autocast``.
        listener: Called with (done, total) after each step.
        deadline: Time (``time.monotonic``) after which ``tick`` raises ``DeadlineExceeded``.
        clients_at_once: How many items ``each`` works on at the same time at most; ``None`` chooses by device.
    """

    name: ClassVar[str] = "eager"
    needs_cuda: ClassVar[bool] = False
    #: Whether the precision ``auto`` is bf16 on GPUs that support it, else tf32.
    prefers_bf16: ClassVar[bool] = False

    device: torch.device
    memory_budget: int | None = None
    precision: Precision = "fp32"
    listener: Callable[[int, int], None] = _silent
    deadline: float | None = None
    clients_at_once: int | None = None

    def chunks(self, count: int, item_bytes: int) -> Iterator[slice]:
        """Split ``count`` items into slices that fit the memory budget."""
        size = max(1, self.budget // max(1, item_bytes))
        for start in range(0, count, size):
            yield slice(start, min(count, start + size))

    def tick(self, done: int, total: int) -> None:
        """Report progress between two steps; raise ``DeadlineExceeded`` after the deadline."""
        self.listener(done, total)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded("the deadline has passed", code="FEDAF-DEADLINE")

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Run networks in this engine's precision within the block."""
        with self._settings(), cast(self.precision):
            yield

    def in_fp32(self) -> Self:
        """Return this engine with precision fp32."""
        return replace(self, precision="fp32")

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return a function that repeats ``step``; see ``fedaf.protocol.Engine`` for what a step may do."""

        def step_with_settings() -> None:  # they apply to backward passes too, which are outside of autocast
            with self._settings():
                step()

        return step_with_settings

    def each(
        self, work: Callable[[Item, Self], Result], items: Sequence[Item], item_bytes: Callable[[], int]
    ) -> Iterator[Result]:
        """Yield ``work(item, engine)`` for each item, in order; several at the same time if their memory fits."""
        at_once = min(self._at_once(), len(items))
        if at_once > 1:
            at_once = min(at_once, self.budget // max(1, item_bytes()))
        if at_once > 1:
            return side_by_side(self, self._apart(work), items, at_once)
        return (work(item, self) for item in items)

    def _at_once(self) -> int:
        """How many items to work on at the same time at most."""
        if self.device.type != "cpu":
            return 1
        return self.clients_at_once or min(torch.get_num_threads(), _MOST_AT_ONCE)

    def _apart(self, work: Callable[[Item, Self], Result]) -> Callable[[Item, Self], Result]:
        """Return work that does not disturb other items at the same time."""
        return work

    def concurrently(self) -> AbstractContextManager[None]:
        """Return a context in which other items of ``each`` may be computed, on a CPU."""
        return generators_released() if self.device.type == "cpu" else nullcontext()

    def _settings(self) -> AbstractContextManager[None]:
        return settings(self.precision, benchmark=False) if self.device.type == "cuda" else nullcontext()

    @property
    def budget(self) -> int:
        """The memory budget in bytes."""
        if self.memory_budget is not None:
            return self.memory_budget
        if self.device.type == "cuda":
            return int(_CUDA_SHARE * torch.cuda.mem_get_info(self.device)[0])
        return _CPU_BUDGET

    def watch(self, listener: Callable[[int, int], None]) -> Self:
        """Return this engine with another progress listener."""
        return replace(self, listener=listener)

    def within(self, memory_budget: int) -> Self:
        """Return this engine with another memory budget."""
        return replace(self, memory_budget=memory_budget)

    def until(self, deadline: float | None) -> Self:
        """Return this engine with another deadline."""
        return replace(self, deadline=deadline)
