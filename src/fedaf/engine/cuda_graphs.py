"""The engine for CUDA: each step is captured once as a CUDA graph and replayed, so that the GPU never waits for Python.

In bf16 it also uses fedaf's kernels for the layers that have one.
"""

import gc
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from fedaf.engine.eager import EagerEngine
from fedaf.engine.precision import settings
from fedaf.kernels import fused

log = logging.getLogger(__name__)

_SYNCHRONISED = "called a synchronizing CUDA operation"  # text of PyTorch's warning
_MAX_AHEAD = 8  # ticks that Python may be ahead of the device: keeps it busy, and a deadline still stops it soon


class _Capturer:
    """What the graphs of one engine share: a memory pool, a stream, and whether capture works at all."""

    def __init__(self) -> None:
        self.works = True
        self._pool: Any = None
        self._first: torch.cuda.CUDAGraph | None = None  # kept alive: the pool is freed with its last graph
        self._stream: torch.cuda.Stream | None = None
        self._events: deque[torch.cuda.Event] = deque()

    def detect_synchronisation(self, step: Callable[[], None]) -> None:
        """Run a step, and disable capture if Python waits for the device in it.

        Such a step cannot be captured, and a failed capture can leave CUDA in a bad state.
        """
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")  # warns that it is a prototype, too
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        if any(_SYNCHRONISED in str(warning.message) for warning in caught):
            self._disable("it synchronises with the device (.item(), float(tensor), .cpu() or similar)")

    def _disable(self, reason: str) -> None:
        self.works = False
        log.warning("this work cannot be captured as a CUDA graph and runs as plain PyTorch: %s", reason[:200])

    def capture(self, step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
        """Capture a step; return ``None`` and log the reason if that fails."""
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(device)
        torch.cuda.synchronize(device)
        self._stream.wait_stream(current)
        collects = gc.isenabled()
        gc.disable()  # freeing device memory must not become part of the graph
        try:
            # Warnings of the step were shown when it ran before. Here a filter that makes them errors would end the
            # capture.
            with warnings.catch_warnings(action="ignore"), torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
        except Exception as error:  # a custom network may do anything
            torch.cuda.synchronize(device)
            _replace_generator_state(device)
            cause = error.__context__ or error  # after a failed step, capture_end fails too
            self._disable(f"{type(cause).__name__}: {cause}".partition("\n")[0])
            return None
        finally:
            if collects:
                gc.enable()
        current.wait_stream(self._stream)
        self._first = self._first or graph
        return graph

    def limit_lead(self, device: torch.device) -> None:
        """Wait until the device is at most ``_MAX_AHEAD`` calls of this method behind."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._events.append(event)
        if len(self._events) > _MAX_AHEAD:
            self._events.popleft().synchronize()


def _replace_generator_state(device: torch.device) -> None:
    """Give the default generator a new state: after a failed capture, PyTorch treats the old one as captured."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator, fresh = torch.cuda.default_generators[index], torch.Generator(device)
    fresh.manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


class _CapturedStep:
    """A step that warms up in its first call, is checked for synchronisation in its second, and replays a graph from
    its third call on."""

    def __init__(self, step: Callable[[], None], capturer: _Capturer, device: torch.device) -> None:
        self._step, self._capturer, self._device = step, capturer, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls == 2 and self._capturer.works:
            self._capturer.detect_synchronisation(self._step)
            return
        if self._graph is None and self._calls > 2 and self._capturer.works:
            self._graph = self._capturer.capture(self._step, self._device)
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()


@dataclass(frozen=True)
class CudaGraphEngine(EagerEngine):
    """An ``EagerEngine`` that replays steps as CUDA graphs."""

    name = "cuda-graphs"
    needs_cuda = True
    prefers_bf16 = True

    capturer: _Capturer = field(default_factory=_Capturer)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        with super().autocast(), fused.allowed() if self.precision == "bf16" else nullcontext():
            yield

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        return _CapturedStep(super().capture(step), self.capturer, self.device)

    def _settings(self) -> AbstractContextManager[None]:
        # Convolutions have few shapes, each used many times, so cuDNN may search for the fastest algorithm. In fp32 and
        # tf32 the numbers are those of PyTorch's default algorithms.
        return settings(self.precision, benchmark=self.precision == "bf16")

    def tick(self, done: int, total: int) -> None:
        self.capturer.limit_lead(self.device)
        super().tick(done, total)
