"""``fedaf bench``: the speed of fedaf on this machine, compared with plain PyTorch loops."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedaf.cli.terminal import print_line
from fedaf.engine.registry import ENGINES
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.bench.suite import Bench, Figures

_HEADER = ("benchmark", "ours ms", "reference ms", "ratio", "of peak", "memory MB")
_WIDTHS = (16, 10, 13, 7, 8, 10)
_BEFORE = ("earlier ms", "speedup")


def bench(
    group: Annotated[str, typer.Argument(help="Benchmarks: condense, server, local, round, scale or all.")] = "all",
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda, cuda:N or mps.")] = "auto",
    engine: Annotated[str, typer.Option(help=f"Engine: auto, {ENGINES.choices}.")] = "auto",
    precision: Annotated[str, typer.Option(help="Precision: auto, fp32, tf32 or bf16.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads. (default: chosen by PyTorch)")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Most timings per benchmark; slow ones have two. (default: by device)")
    ] = None,
    memory_budget: Annotated[int | None, typer.Option(min=1, help="Memory budget in MiB. (default: by device)")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test with tiny shapes, not for timing.")] = False,
    file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this JSON file.")] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", help="Show the speedup since this JSON file was written.")
    ] = None,
) -> None:
    """Time condensation, training and a round of FedAF, and compare with plain PyTorch loops on random images.

    Takes up to two minutes, and prints each figure when it is known. docs/reference/benchmarks.md
    defines what is measured.
    """
    if file is not None and not file.absolute().parent.is_dir():
        raise UserError(f"the folder of --json {file} does not exist; create it first.", code="FEDAF-BENCH-FILE")
    earlier = {} if compare is None else _read(compare)
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
    count = len(chosen.benchmarks)
    print_line(console, f"{count} benchmark{'s' * (count > 1)}, usually less than 20 seconds each")
    print_line(console, _line(*_HEADER, *(_BEFORE if earlier else ())))
    figures = []
    for benchmark, each in chosen.run():
        print_line(console, f"{_row(each, earlier)} {benchmark.what}")
        figures.append(each)
    print_line(console, _conditions(chosen, figures[0].device))
    others = {each["device"] for each in earlier.values()} - {figures[0].device}
    if others:
        print_line(console, f"The earlier figures are from another device: {', '.join(sorted(others))}.")
    if file is not None:
        write_atomically(file, json.dumps([asdict(each) for each in figures], indent=2) + "\n")


def _read(file: Path) -> Mapping[str, Any]:
    """Return the figures of an earlier run, by the name of their benchmark."""
    try:
        figures = {each["name"]: each for each in json.loads(file.read_text())}
        if not all(each["ours_ms"] > 0 and isinstance(each["device"], str) for each in figures.values()):
            raise ValueError("a time is not positive")
    except (OSError, ValueError, TypeError, KeyError) as error:
        what = f"{file} is not a file of fedaf bench --json ({type(error).__name__}: {error})"
        raise UserError(f"{what}; write one with --json.", code="FEDAF-BENCH-COMPARE") from None
    return figures


def _row(figures: "Figures", earlier: Mapping[str, Any]) -> str:
    memory = "" if figures.memory_mb is None else f"{figures.memory_mb:.0f}"
    times = (f"{figures.ours_ms:.3f}", f"{figures.reference_ms:.3f}", f"{figures.ratio:.2f}")
    row = [figures.name, *times, f"{figures.peak_share:.1%}", memory]
    if figures.name in earlier:
        before = earlier[figures.name]["ours_ms"]
        row += [f"{before:.3f}", f"{before / figures.ours_ms:.2f}"]
    elif earlier:
        row += ["", ""]
    return _line(*row)


def _line(*cells: str) -> str:
    """Return the cells in columns: the first aligned left, the others right."""
    widths = (*_WIDTHS, *map(len, _BEFORE))
    aligned = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=False))
    return " ".join([cells[0].ljust(widths[0]), *aligned]) + " "


def _conditions(bench: "Bench", device: str) -> str:
    """Describe the conditions of the measurement."""
    import torch

    return (
        f"device {device}, engine {bench.engine.name}, precision {bench.engine.precision}, {bench.tf32()}, "
        f"threads {torch.get_num_threads()}, torch {torch.__version__}, "
        f"peak {bench.peaks.flop / 1e12:.4g} TFLOP/s and {bench.peaks.bytes / 1e9:.4g} GB/s"
    )
