"""The fast engine, on CUDA: a step is recorded once as a graph of kernels and replayed, so that the GPU never waits
for Python; networks compute in bf16 and through this package's own kernels where they have some."""

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
from fedaf.models import fused

log = logging.getLogger(__name__)

_WAITED = "called a synchronizing CUDA operation"  # PyTorch's words
_AHEAD = 8  # ticks that Python may be ahead of the device: enough to keep it busy, few enough to stop in time


class _Recorder:
    """What the graphs of one engine share: memory, a stream to record on, and whether recording works at all."""

    def __init__(self) -> None:
        self.works = True
        self._pool: Any = None
        self._first: torch.cuda.CUDAGraph | None = None  # kept, as the memory of all goes with the last that uses it
        self._stream: torch.cuda.Stream | None = None
        self._events: deque[torch.cuda.Event] = deque()

    def watch(self, step: Callable[[], None]) -> None:
        """Run a step, and note whether Python waits for the device in it: such a step cannot be recorded, and trying to
        would leave CUDA in disorder."""
        mode = torch.cuda.get_sync_debug_mode()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        if any(_WAITED in str(warning.message) for warning in caught):
            self._give_up("Python waits for the device in it")

    def _give_up(self, reason: str) -> None:
        self.works = False
        log.warning("this work cannot be recorded on the GPU and goes on as plain PyTorch: %s", reason[:200])

    def record(self, step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
        """The step as a graph, or ``None`` and a line in the log where it cannot be recorded."""
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        here = torch.cuda.current_stream(device)
        torch.cuda.synchronize(device)
        self._stream.wait_stream(here)
        collects = gc.isenabled()
        gc.disable()  # what it frees on the device must not become part of the recording
        try:
            with torch.cuda.stream(self._stream):
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
        except Exception as error:  # a user's network may do anything
            torch.cuda.synchronize(device)
            _free_default_generator(device)
            cause = error.__context__ or error  # the end of a recording that failed fails too
            self._give_up(f"{type(cause).__name__}: {cause}".partition("\n")[0])
            return None
        finally:
            if collects:
                gc.enable()
        here.wait_stream(self._stream)
        self._first = self._first or graph
        return graph

    def keep_close(self, device: torch.device) -> None:
        """Wait until the device is at most ``_AHEAD`` calls of this behind."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._events.append(event)
        if len(self._events) > _AHEAD:
            self._events.popleft().synchronize()


def _free_default_generator(device: torch.device) -> None:
    """After a recording that failed PyTorch takes its generator to be part of one for good: give it another state."""
    index = torch.cuda.current_device() if device.index is None else device.index
    generator, fresh = torch.cuda.default_generators[index], torch.Generator(device)
    fresh.manual_seed(generator.initial_seed())
    generator.graphsafe_set_state(fresh.graphsafe_get_state())


class _Repeated:
    """Runs a step plainly the first time, which warms up whatever it needs; watched the second time; and replays its
    record from then on."""

    def __init__(self, step: Callable[[], None], recorder: _Recorder, device: torch.device) -> None:
        self._step, self._recorder, self._device = step, recorder, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls == 2 and self._recorder.works:
            self._recorder.watch(self._step)
            return
        if self._graph is None and self._calls > 2 and self._recorder.works:
            self._graph = self._recorder.record(self._step, self._device)
        if self._graph is None:
            self._step()
        else:
            self._graph.replay()


@dataclass(frozen=True)
class CudaGraphEngine(EagerEngine):
    """Like the eager engine, which it is tested against, but fast."""

    name = "compiled"

    recorder: _Recorder = field(default_factory=_Recorder)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        with super().autocast(), fused.allowed() if self._coarse else nullcontext():
            yield

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        return _Repeated(super().capture(step), self.recorder, self.device)

    def _settings(self) -> AbstractContextManager[None]:
        # Convolutions have few shapes, and each many times: cuDNN may try what is fastest.
        return settings(self.precision, try_algorithms=self._coarse)

    @property
    def _coarse(self) -> bool:
        """Exact numbers are those of PyTorch, and of the algorithms it takes by itself."""
        return self.precision == "bf16"

    def tick(self, done: int, total: int) -> None:
        self.recorder.keep_close(self.device)
        super().tick(done, total)
