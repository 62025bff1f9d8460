"""The benchmarks of ``fedaf bench``: each times fedaf ("ours") and a plain PyTorch loop ("reference").

docs/reference/benchmarks.md defines what is measured.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedaf.bench import reference
from fedaf.bench.process import ReferenceProcess
from fedaf.bench.timing import Action, Clock, MemoryMeter, Peaks, Timing, interleaved, measure_peaks, timed
from fedaf.bench.work import Scale, Split, Work
from fedaf.common.naming import nearest
from fedaf.engine import make_engine, resolve_device
from fedaf.protocol import Key, Task, UserError
from fedaf.runs.composition import device_name

_SECONDS = 8.0  # of timing, after which a benchmark is not repeated any more

GROUPS = ("condense", "server", "local", "round", "scale", "all")

# The classes of each client, few as in a Dirichlet(0.02) split: 15 (client, class) pairs, and 3 for slow devices.
_TEN_CLIENTS = [[label, label + 5] if label < 5 else [label] for label in range(10)]
_TWO_CLIENTS = [[0, 1], [2]]


@dataclass(frozen=True)
class _Effort:
    """The amount of work for a kind of device.

    Args:
        split: The classes of each client.
        scale: The size of the work.
        repeats: How often each action is timed.
        matrix: Side of the matrices that measure peak FLOP/s.
        copied: Bytes of the copies that measure peak bandwidth.
        small_clients: Numbers of clients of the ``scale`` benchmarks.
    """

    split: Split
    scale: Scale
    repeats: int
    matrix: int
    copied: int
    small_clients: tuple[int, ...]


_TINY = Scale(12, 1, 2, 1, side=16, filters=16, real_batch=8, ipc=5, server_batch=16, local_batch=8)
_CUDA_SCALE = Scale(per_class=3333, block=20, round_steps=100, round_epochs=50)
_CUDA = _Effort(_TEN_CLIENTS, _CUDA_SCALE, 5, 8192, 1 << 30, small_clients=(10, 100, 1000))
_CPU_SCALE = Scale(per_class=100, block=1, round_steps=2, round_epochs=1)
_CPU = _Effort(_TWO_CLIENTS, _CPU_SCALE, 3, 2048, 1 << 28, small_clients=(10, 50))
_QUICK = _Effort(_TWO_CLIENTS, _TINY, 1, 256, 1 << 20, small_clients=(2, 5))


@dataclass(frozen=True)
class Figures:
    """One measurement.

    Args:
        name: The benchmark.
        ours_ms: Time of fedaf per unit, in milliseconds.
        reference_ms: Time of the reference per unit, in milliseconds.
        ratio: ``reference_ms / ours_ms``; above 1, fedaf is faster.
        flop: Floating point operations that a unit needs mathematically.
        peak_share: Share of the device's peak FLOP/s that fedaf reaches.
        memory_mb: Peak memory of fedaf in MB; ``None`` if unknown.
        device: The device.
    """

    name: str
    ours_ms: float
    reference_ms: float
    ratio: float
    flop: float
    peak_share: float
    memory_mb: float | None
    device: str


@dataclass(frozen=True)
class Benchmark:
    """The same work, done by fedaf and by the reference.

    Args:
        name: Group and name, as in ``condense/client``.
        what: What one unit is, for the table.
        flop: Floating point operations of a unit.
        units: Units that ``ours`` computes in a call.
        repeats: How often each action is timed.
        ours: Prepares fedaf's work and returns the action to time.
        reference: Prepares the reference's work and returns the action to time.
        reference_units: Units that ``reference`` computes in a call, if fewer.
    """

    name: str
    what: str
    flop: float
    units: int
    repeats: int
    ours: Callable[[], Action]
    reference: Callable[[], Action]
    reference_units: int | None = None

    def measure(self, device: torch.device, reference_clock: Clock | None = None) -> tuple[Timing, int | None]:
        """Return the time of both, and the peak memory of ours in bytes.

        ``reference_clock`` times the reference elsewhere; its first call is a warm-up.
        """
        meter = MemoryMeter(device)
        ours = self.ours()
        ours()
        memory = meter.read()  # before the reference allocates any
        reference_clock = reference_clock or self.reference_clock(device)
        reference_clock()
        return interleaved(partial(timed, ours, device), reference_clock, self.repeats, limit=_SECONDS), memory

    def reference_clock(self, device: torch.device) -> Clock:
        """Prepare the reference's work and return what times it."""
        return partial(timed, reference.tf32()(self.reference()), device)

    def figures(self, timing: Timing, memory: int | None, *, device: torch.device, peak: float) -> Figures:
        """Return the figures of one unit, for a device with ``peak`` FLOP/s."""
        ours, plain = timing.ours / self.units, timing.reference / (self.reference_units or self.units)
        return Figures(
            name=self.name,
            ours_ms=1e3 * ours,
            reference_ms=1e3 * plain,
            ratio=plain / ours,
            flop=self.flop,
            peak_share=self.flop * self.units / timing.ours / peak,
            memory_mb=None if memory is None else memory / 1e6,
            device=device_name(device),
        )


class Bench:
    """The benchmarks of a group, on one engine.

    Args:
        group: One of ``GROUPS``.
        device: The name of the device.
        engine: The name of the engine.
        precision: The name of the precision.
        repeats: How often each action is timed; ``None`` chooses by device.
        quick: Use tiny shapes, as a smoke test.
        memory_budget: Bytes that one step may use; ``None`` chooses by device.

    Raises:
        UserError: If a name is unknown, or not available on this machine.
    """

    def __init__(
        self,
        group: str = "all",
        *,
        device: str = "auto",
        engine: str = "auto",
        precision: str = "auto",
        repeats: int | None = None,
        quick: bool = False,
        memory_budget: int | None = None,
    ) -> None:
        if group not in GROUPS:
            what = f"unknown benchmark {group!r}{nearest(group, GROUPS)}"
            raise UserError(f"{what}; expected one of {', '.join(GROUPS)}.", code="FEDAF-BENCH-UNKNOWN")
        self._same = partial(Bench, group, device=device, engine=engine, precision=precision, quick=quick)
        self.engine = make_engine(engine, resolve_device(device), precision=precision, memory_budget=memory_budget)
        self._effort = _QUICK if quick else _CUDA if self.engine.device.type == "cuda" else _CPU
        known = _benchmarks(Work(self.engine, self._effort.scale), self._effort, repeats or self._effort.repeats)
        self.benchmarks = [b for b in known if group in ("all", b.name.partition("/")[0])]

    def run(self) -> Iterator[tuple[Benchmark, Figures]]:
        """Run all benchmarks, and yield the figures of each as soon as it has run.

        On a CPU, the reference runs in a process of its own: it would gain from the memory that fedaf keeps. The peaks
        are measured before and after each benchmark, in case other processes use the machine; the best so far counts.
        """
        device, self.peaks = self.engine.device, self._peaks()
        with ExitStack() as stack:
            elsewhere = None
            if device.type == "cpu":
                elsewhere = stack.enter_context(ReferenceProcess(self._same))
            for number, benchmark in enumerate(self.benchmarks):
                clock = None if elsewhere is None else partial(elsewhere.time, number)
                timing, memory = benchmark.measure(device, clock)
                self.peaks = self.peaks.or_better(self._peaks())
                yield benchmark, benchmark.figures(timing, memory, device=device, peak=self.peaks.flop)

    def _peaks(self) -> Peaks:
        """Measure the peak performance in the engine's precision."""
        dtype = torch.bfloat16 if self.engine.precision == "bf16" else torch.float32
        with self.engine.autocast():
            return measure_peaks(self.engine.device, dtype, side=self._effort.matrix, copied=self._effort.copied)

    def tf32(self) -> str:
        """Describe the TF32 flags of ours and of the reference."""
        if self.engine.device.type != "cuda":
            return "no TF32"
        with self.engine.autocast():
            ours = _tf32_flags()
        with reference.tf32():
            return f"TF32 ours {ours}, reference {_tf32_flags()}"


def forward_flop(model: nn.Module, task: Task) -> int:
    """Return the FLOP of an image's forward pass through convolutions and linear layers; a multiply-add counts as 2."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(torch.zeros(1, *task.image_shape))
    return int(counter.get_total_flops())


def _tf32_flags() -> str:
    flags = {"convolutions": torch.backends.cudnn.allow_tf32, "products": torch.backends.cuda.matmul.allow_tf32}
    return " ".join(f"{name} {'on' if flag else 'off'}" for name, flag in flags.items())


def _benchmarks(work: Work, effort: _Effort, repeats: int) -> list[Benchmark]:
    scale, pairs = effort.scale, sum(map(len, effort.split))
    forward = forward_flop(work.method.build_model(Key(0)), work.task)
    # Real images need a forward pass, condensed images a forward pass and a backward pass to their pixels.
    condensed = forward * (scale.real_batch + 2 * scale.ipc)
    trained = 3 * forward

    def condensing(name: str, what: str, split: Split, flop: float, units: int) -> Benchmark:
        ours, plain = partial(work.our_condensation, split), partial(work.reference_condensation, split)
        return Benchmark(name, what, flop, units * scale.block, repeats, ours, plain)

    def training(name: str, batch: int) -> Benchmark:
        ours, plain = partial(work.our_training, batch), partial(work.reference_training, batch)
        return Benchmark(name, f"step, batch {batch}", trained * batch, scale.block, repeats, ours, plain)

    def small_clients(clients: int) -> Benchmark:
        """Many small clients with two classes each; the reference computes only a few of them."""
        few, small = min(clients, 10), work.small()
        step = forward * (small.real_batch + 2 * small.ipc)
        units, few_units = (2 * number * small.local_steps for number in (clients, few))
        ours, plain = partial(work.our_small_clients, clients), partial(work.reference_small_clients, few)
        what = f"pair and step, {clients} clients"
        return Benchmark(f"scale/{clients}", what, step, units, repeats, ours, plain, reference_units=few_units)

    of_round = forward * scale.per_class + condensed * scale.round_steps + trained * scale.ipc * scale.round_epochs
    what = f"round: {pairs} pairs, steps {scale.round_steps}, epochs {scale.round_epochs}"
    ours, plain = partial(work.our_round, effort.split), partial(work.reference_round, effort.split)
    return [
        condensing("condense/client", "step, 2 classes", [[0, 1]], 2 * condensed, 1),
        condensing("condense/pairs", f"pair of {pairs}", effort.split, condensed, pairs),
        training("server/step", scale.server_batch),
        training("local/step", scale.local_batch),
        Benchmark("round/fedaf", what, pairs * of_round, 1, repeats, ours, plain),
        *map(small_clients, effort.small_clients),
    ]
