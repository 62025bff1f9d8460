"""The engine for CUDA: each step is captured once as a CUDA graph and replayed, so that the GPU never waits for Python.

In bf16 it also uses fedaf's kernels for the layers that have one.
"""

import gc
import logging
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, Self, TypeVar

import torch

from fedaf.engine.eager import EagerEngine
from fedaf.engine.precision import settings
from fedaf.kernels import fused
from fedaf.protocol import generators_released

log = logging.getLogger(__name__)

_SYNCHRONISED = "called a synchronizing CUDA operation"  # text of PyTorch's warning
_MAX_AHEAD = 8  # ticks that Python may be ahead of the device: keeps it busy, and a deadline still stops it soon
_TURN = 16  # steps that a client launches before another client can; at most two turns wait for the device

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Capturer:
    """What the graphs of one engine share: a memory pool, a stream, and whether capture works at all.

    Graphs that share a memory pool must not be replayed at the same time.

    Args:
        disabled: Set when a step could not be captured; from then on, none is.
    """

    def __init__(self, disabled: Event | None = None) -> None:
        self.disabled = disabled or Event()
        self.idle_lanes: list[_Lane] = []
        self._pool: Any = None
        self._first: torch.cuda.CUDAGraph | None = None  # kept alive: the pool is freed with its last graph
        self._stream: torch.cuda.Stream | None = None
        self._events: deque[torch.cuda.Event] = deque()

    @property
    def works(self) -> bool:
        """Whether steps are captured."""
        return not self.disabled.is_set()

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
        self.disabled.set()
        log.warning("this work cannot be captured as a CUDA graph and runs as plain PyTorch: %s", reason[:200])

    def capture(self, step: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph | None:
        """Capture a step; return ``None`` and log the reason if that fails."""
        if self._stream is None:
            self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(device)
        current.synchronize()
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

    def launched(self) -> None:
        """Called after a captured step was launched."""

    def limit_lead(self, device: torch.device) -> None:
        """Wait until the device is at most ``_MAX_AHEAD`` calls of this method behind."""
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))
        self._events.append(event)
        if len(self._events) > _MAX_AHEAD:
            self._events.popleft().synchronize()


class _Lane(_Capturer):
    """Work beside other work on the same device: a stream, graphs and random generators of its own.

    Only one thread at a time runs Python code. A thread that waits for the device lets others run.
    """

    def __init__(self, device: torch.device, disabled: Event) -> None:
        super().__init__(disabled)
        self._device, self._launches = device, 0
        self._lane_stream = torch.cuda.Stream(device)
        # A graph keeps the generator state with which it was captured; two streams must not share one.
        self._cuda_draws = torch.Generator(device)
        self._cpu_draws = torch.get_rng_state()
        self._others: tuple[torch.Generator, torch.Tensor] | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Compute on this lane within the block. At its end, everything is computed."""
        self._lane_stream.wait_stream(torch.cuda.current_stream(self._device))
        self._take_generators()
        try:
            with torch.cuda.stream(self._lane_stream):
                yield
        finally:
            try:
                self._wait_for(self._lane_stream)
            finally:
                self._events.clear()
                self._return_generators()

    def launched(self) -> None:
        self._launches += 1
        if self._launches % _TURN == 0:
            self._wait_for_earlier_turns()

    def limit_lead(self, device: torch.device) -> None:
        """Do nothing: ``launched`` limits the lead."""

    def _wait_for_earlier_turns(self) -> None:
        event = torch.cuda.Event(blocking=True)  # the thread sleeps
        event.record(self._lane_stream)
        self._events.append(event)
        if len(self._events) > 1:
            self._wait_for(self._events.popleft())

    def _wait_for(self, work: torch.cuda.Event | torch.cuda.Stream) -> None:
        """Wait for the device, and let other threads run meanwhile."""
        self._return_generators()
        try:
            with generators_released():
                work.synchronize()
        finally:
            self._take_generators()

    def _take_generators(self) -> None:
        default = _default_generator(self._device)
        self._others = default.graphsafe_get_state(), torch.get_rng_state()
        default.graphsafe_set_state(self._cuda_draws)
        torch.set_rng_state(self._cpu_draws)

    def _return_generators(self) -> None:
        default = _default_generator(self._device)
        assert self._others is not None
        self._cuda_draws, self._cpu_draws = default.graphsafe_get_state(), torch.get_rng_state()
        default.graphsafe_set_state(self._others[0])
        torch.set_rng_state(self._others[1])


def _default_generator(device: torch.device) -> torch.Generator:
    index = torch.cuda.current_device() if device.index is None else device.index
    found: torch.Generator = torch.cuda.default_generators[index]
    return found


def _replace_generator_state(device: torch.device) -> None:
    """Give the default generator a new state: after a failed capture, PyTorch treats the old one as captured."""
    generator, fresh = _default_generator(device), torch.Generator(device)
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
            self._capturer.launched()


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

    def _at_once(self) -> int:
        return self.clients_at_once or 1

    def _apart(self, work: Callable[[Item, Self], Result]) -> Callable[[Item, Self], Result]:
        def on_a_lane(item: Item, engine: Self) -> Result:
            idle = self.capturer.idle_lanes
            lane = idle.pop() if idle else _Lane(self.device, self.capturer.disabled)
            with lane.entered():
                result = work(item, replace(engine, capturer=lane))
            idle.append(lane)
            return result

        return on_a_lane

    def _settings(self) -> AbstractContextManager[None]:
        # Convolutions have few shapes, each used many times, so cuDNN may search for the fastest algorithm. In fp32 and
        # tf32 the numbers are those of PyTorch's default algorithms.
        return settings(self.precision, benchmark=self.precision == "bf16")

    def tick(self, done: int, total: int) -> None:
        self.capturer.limit_lead(self.device)
        super().tick(done, total)
