"""The plain engine: PyTorch as it is, in chunks that fit a memory budget. Faster engines are tested against it."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch

from fedaf.engine.precision import Precision, cast, settings
from fedaf.protocol import DeadlineExceeded

_CPU_BUDGET = 128 << 20  # fits beside everything else on a small machine
_CUDA_SHARE = 0.5


def _silent(done: int, total: int) -> None:
    return None


@dataclass(frozen=True)
class EagerEngine:
    """Implements ``fedaf.protocol.Engine``. ``watch`` and ``until`` give views of it for one delivery."""

    name: ClassVar[str] = "eager"

    device: torch.device
    memory_budget: int | None = None
    precision: Precision = "fp32"
    listener: Callable[[int, int], None] = _silent
    deadline: float | None = None

    def chunks(self, count: int, item_bytes: int) -> Iterator[slice]:
        size = max(1, self.budget // max(1, item_bytes))
        for start in range(0, count, size):
            yield slice(start, min(count, start + size))

    def tick(self, done: int, total: int) -> None:
        self.listener(done, total)
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise DeadlineExceeded("the deadline has passed")

    @contextmanager
    def autocast(self) -> Iterator[None]:
        with self._settings(), cast(self.precision):
            yield

    def in_fp32(self) -> Self:
        return replace(self, precision="fp32")

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        def step_in_our_settings() -> None:  # for backward passes too
            with self._settings():
                step()

        return step_in_our_settings

    def _settings(self) -> AbstractContextManager[None]:
        if self.device.type != "cuda":
            return nullcontext()
        return settings(self.precision, try_algorithms=False)

    @property
    def budget(self) -> int:
        if self.memory_budget is not None:
            return self.memory_budget
        if self.device.type == "cuda":
            return int(_CUDA_SHARE * torch.cuda.mem_get_info(self.device)[0])
        return _CPU_BUDGET

    def watch(self, listener: Callable[[int, int], None]) -> Self:
        return replace(self, listener=listener)

    def until(self, deadline: float | None) -> Self:
        return replace(self, deadline=deadline)
