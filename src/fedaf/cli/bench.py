"""``fedaf bench``: the speed of fedaf on this machine, compared with plain PyTorch loops."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedaf.cli.terminal import print_line
from fedaf.engine.registry import ENGINES
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.bench.suite import Bench, Figures
    from fedaf.bench.timing import Peaks


def bench(
    group: Annotated[str, typer.Argument(help="Benchmarks: condense, server, local, round, scale or all.")] = "all",
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda, cuda:N or mps.")] = "auto",
    engine: Annotated[str, typer.Option(help=f"Engine: auto, {ENGINES.choices}.")] = "auto",
    precision: Annotated[str, typer.Option(help="Precision: auto, fp32, tf32 or bf16.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. (default: PyTorch's default)")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Number of measurements of each benchmark. (default: by device)")
    ] = None,
    memory_budget: Annotated[
        int | None, typer.Option(min=1, help="Memory budget of one step, in MiB. (default: by device)")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smoke test with tiny shapes; the times mean nothing.")
    ] = False,
    file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Time condensation, training and a round of FedAF, and compare with plain PyTorch loops on random images.

    Takes about two minutes. docs/BENCHMARKS.md defines what is measured.
    """
    if file is not None and not file.absolute().parent.is_dir():
        raise UserError(
            f"--json {file} cannot be written, because its folder does not exist; create it first.",
            code="FEDAF-BENCH-FILE",
        )
    import torch

    from fedaf.bench.suite import Bench
    from fedaf.common.files import write_atomically

    chosen = Bench(
        group,
        device=device,
        engine=engine,
        precision=precision,
        repeats=repeats,
        quick=quick,
        memory_budget=memory_budget << 20 if memory_budget else None,
    )
    if threads is not None:
        torch.set_num_threads(threads)
    console = Console(emoji=False)
    with console.status("measuring") as status:
        figures, peaks = chosen.run(status.update)
    console.print(_table(chosen, figures))
    print_line(console, _conditions(chosen, figures, peaks))
    if file is not None:
        write_atomically(file, json.dumps([asdict(each) for each in figures], indent=2) + "\n")


def _table(bench: "Bench", figures: "Sequence[Figures]") -> Table:
    from rich.box import SIMPLE

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("benchmark", no_wrap=True)
    table.add_column("unit", min_width=15)
    for header in ("ours\nms", "reference\nms", "ratio", "of\npeak", "memory\nMB"):
        table.add_column(header, justify="right", no_wrap=True)
    for benchmark, each in zip(bench.benchmarks, figures, strict=True):
        table.add_row(
            each.name,
            benchmark.what,
            f"{each.ours_ms:.3f}",
            f"{each.reference_ms:.3f}",
            f"{each.ratio:.2f}",
            f"{each.peak_share:.1%}",
            "" if each.memory_mb is None else f"{each.memory_mb:.0f}",
        )
    return table


def _conditions(bench: "Bench", figures: "Sequence[Figures]", peaks: "Peaks") -> str:
    """Describe the conditions of the measurement."""
    import torch

    return ", ".join(
        [
            f"device {figures[0].device}",
            f"engine {bench.engine.name}",
            f"precision {bench.engine.precision}",
            bench.tf32(),
            f"threads {torch.get_num_threads()}",
            f"torch {torch.__version__}",
            f"peak {peaks.flop / 1e12:.4g} TFLOP/s and {peaks.bytes / 1e9:.4g} GB/s",
        ]
    )
