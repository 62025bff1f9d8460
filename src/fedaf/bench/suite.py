"""``fedaf bench`` from Python: each benchmark times ours beside a plain loop. docs/BENCHMARKS.md says what is counted,
and how."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedaf.bench import reference as reference
from fedaf.bench.timing import Action, MemoryMeter, Peaks, Timing, interleaved, measure_peaks
from fedaf.bench.work import Scale, Split, Work
from fedaf.common.naming import nearest
from fedaf.engine import make_engine, resolve_device
from fedaf.protocol import Key, Task, UserError
from fedaf.runs.experiment import device_name

GROUPS = ("condense", "server", "local", "round", "scale", "all")

# Clients' classes as a split by Dirichlet(0.02) has them, few each: 15 (client, class) pairs, and 3 for slow devices.
_TEN_CLIENTS = [[label, label + 5] if label < 5 else [label] for label in range(10)]
_TWO_CLIENTS = [[0, 1], [2]]


@dataclass(frozen=True)
class _Effort:
    """How much is done on a kind of device: the clients and the scale of the work, how often it is timed, the
    size of the matrices and copies that tell the peak, and numbers of small clients."""

    split: Split
    scale: Scale
    repeats: int
    matrix: int
    copied: int
    crowds: tuple[int, ...]


_TINY = Scale(12, 1, 2, 1, side=16, filters=16, real_batch=8, ipc=5, server_batch=16, local_batch=8)
_CUDA_SCALE = Scale(held=3333, block=20, round_steps=100, round_epochs=50)
_CUDA = _Effort(_TEN_CLIENTS, _CUDA_SCALE, 5, 8192, 1 << 30, crowds=(10, 100, 1000))
_CPU = _Effort(_TWO_CLIENTS, Scale(held=100, block=1, round_steps=2, round_epochs=1), 3, 2048, 1 << 28, crowds=(10, 50))
_QUICK = _Effort(_TWO_CLIENTS, _TINY, 1, 256, 1 << 20, crowds=(2, 5))


@dataclass(frozen=True)
class Figures:
    """One measurement: milliseconds of ours and of the reference, their ratio (above 1 ours is faster), the operations
    that the mathematics needs, the share of the peak at which ours did them, and the memory it took."""

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
    """Two ways to do the same. ``ours`` and ``reference`` make ready and return what is timed: ``units`` of ``what``,
    of ``flop`` operations each; the reference ``plain_units`` of them, where all would take too long."""

    name: str
    what: str
    flop: float
    units: int
    repeats: int
    ours: Callable[[], Action]
    reference: Callable[[], Action]
    plain_units: int | None = None

    def measure(self, device: torch.device) -> tuple[Timing, int | None]:
        """Seconds of both, and the bytes that ours needs."""
        meter = MemoryMeter(device)
        ours = self.ours()
        ours()
        memory = meter.read()  # before there is a reference that needs some too
        plain = reference.tf32()(self.reference())
        plain()
        return interleaved(ours, plain, self.repeats, device=device), memory

    def figures(self, timing: Timing, memory: int | None, *, device: torch.device, peak: float) -> Figures:
        """For one unit, where the device does at most ``peak`` operations a second."""
        ours, plain = timing.ours / self.units, timing.reference / (self.plain_units or self.units)
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
    """The benchmarks of a group (one of ``GROUPS``) for an engine."""

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
            raise UserError(f"unknown benchmark {group!r}{nearest(group, GROUPS)}; allowed is {', '.join(GROUPS)}.")
        self.engine = make_engine(engine, resolve_device(device), precision=precision, memory_budget=memory_budget)
        self._effort = _QUICK if quick else _CUDA if self.engine.device.type == "cuda" else _CPU
        known = _benchmarks(Work(self.engine, self._effort.scale), self._effort, repeats)
        self.benchmarks = [b for b in known if group in ("all", b.name.partition("/")[0])]

    def run(self, say: Callable[[str], object]) -> tuple[list[Figures], Peaks]:
        """Measure everything; ``say`` is told what is next. Peaks are taken before, between and after the benchmarks,
        and the best ones count: others may have used the machine meanwhile."""
        device, measured = self.engine.device, []
        peaks = self._peaks()
        for benchmark in self.benchmarks:
            say(benchmark.name)
            measured.append((benchmark, *benchmark.measure(device)))
            peaks = peaks.or_better(self._peaks())
        return [b.figures(timing, memory, device=device, peak=peaks.flop) for b, timing, memory in measured], peaks

    def _peaks(self) -> Peaks:
        """What the device can do in the precision of the engine."""
        dtype = torch.bfloat16 if self.engine.precision == "bf16" else torch.float32
        with self.engine.autocast():
            return measure_peaks(self.engine.device, dtype, side=self._effort.matrix, copied=self._effort.copied)

    def tf32(self) -> str:
        """Where ours and the reference compute in TF32, in words."""
        if self.engine.device.type != "cuda":
            return "no TF32"
        with self.engine.autocast():
            ours = _tf32_flags()
        with reference.tf32():
            return f"TF32 ours {ours}, reference {_tf32_flags()}"


def forward_flop(model: nn.Module, task: Task) -> int:
    """Operations of one image's pass through the convolutions and linear layers; a multiplication with an addition
    counts as two."""
    image = torch.zeros(1, *task.image_shape)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(image)
    return int(counter.get_total_flops())


def _tf32_flags() -> str:
    flags = {"convolutions": torch.backends.cudnn.allow_tf32, "products": torch.backends.cuda.matmul.allow_tf32}
    return " ".join(f"{name} {'on' if flag else 'off'}" for name, flag in flags.items())


def _benchmarks(work: Work, effort: _Effort, repeats: int | None) -> list[Benchmark]:
    scale, pairs = effort.scale, sum(map(len, effort.split))
    forward = forward_flop(work.method.build_model(Key(0)), work.task)
    condensed = forward * (scale.real_batch + 2 * scale.ipc)  # real images forward, the others back to their pixels
    trained = 3 * forward
    often = repeats or effort.repeats

    def condensing(name: str, what: str, split: Split, flop: float, units: int) -> Benchmark:
        ours, plain = partial(work.our_condensation, split), partial(work.reference_condensation, split)
        return Benchmark(name, what, flop, units * scale.block, often, ours, plain)

    def training(name: str, batch: int) -> Benchmark:
        ours, plain = partial(work.our_training, batch), partial(work.reference_training, batch)
        return Benchmark(name, f"step, batch {batch}", trained * batch, scale.block, often, ours, plain)

    return [
        condensing("condense/client", "step, 2 classes", [[0, 1]], 2 * condensed, 1),
        condensing("condense/pairs", f"pair of {pairs}", effort.split, condensed, pairs),
        training("server/step", scale.server_batch),
        training("local/step", scale.local_batch),
        Benchmark(
            "round/fedaf",
            f"round: {pairs} pairs, steps {scale.round_steps}, epochs {scale.round_epochs}",
            pairs * (forward * scale.held + condensed * scale.round_steps + trained * scale.ipc * scale.round_epochs),
            1,
            often,
            partial(work.our_round, effort.split),
            partial(work.reference_round, effort.split),
        ),
        *(_crowd(work, clients, often) for clients in effort.crowds),
    ]


def _crowd(work: Work, clients: int, repeats: int) -> Benchmark:
    """Many small clients, each with two classes."""
    few = min(clients, 10)
    small = work.small()
    step = forward_flop(work.method.build_model(Key(0)), work.task) * (small.real_batch + 2 * small.ipc)
    return Benchmark(
        f"scale/{clients}",
        f"pair and step, {clients} clients",
        step,
        2 * clients * small.local_steps,
        repeats,
        partial(work.our_crowd, clients),
        partial(work.reference_crowd, few),
        plain_units=2 * few * small.local_steps,
    )
