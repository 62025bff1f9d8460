"""Pictures from run directories: learning curves, who holds what, the condensed images."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedaf.federation.run_directory import CONDENSED, PARTITION, RESULT


def read_result(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / RESULT).read_text())
    return found


def curves(results: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Test accuracy by round, a line for each method."""
    figure, axes = _figure(6.4, 4.0)
    for result in results:
        rounds = range(1, len(result["curve"]) + 1)
        axes.plot(rounds, result["curve"], marker="o", markersize=3, label=result["method"])
    axes.set(xlabel="round", ylabel="test accuracy (%)", title=results[0]["dataset"])
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    return _save(figure, path)


def bubbles(run: Path, path: Path) -> Path:
    """The split: a circle for each class of each client, its area by the samples."""
    counts = json.loads((run / PARTITION).read_text())["counts"]
    grid = np.array(list(counts.values()))
    clients, classes = grid.shape
    figure, axes = _figure(max(4.0, min(16.0, 1.5 + 0.4 * clients)), max(3.0, min(12.0, 1.5 + 0.3 * classes)))
    x, y = np.meshgrid(np.arange(clients), np.arange(classes), indexing="ij")
    axes.scatter(x.ravel(), y.ravel(), s=220 * grid.ravel() / grid.max(), alpha=0.7)
    axes.set(xlabel="client", ylabel="class", title="samples of each class")
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    return _save(figure, path)


def gallery(run: Path, path: Path) -> Path | None:
    """All condensed images of a run, a row for each class of each client, each pixel large enough to see."""
    sheets = []
    for file in sorted((run / CONDENSED).glob("*.png")):
        with Image.open(file) as sheet:
            sheets.append(sheet.convert("RGB"))
    if not sheets:
        return None
    width, height = max(s.width for s in sheets), sum(s.height for s in sheets)
    whole = Image.new("RGB", (width, height))
    top = 0
    for picture in sheets:
        whole.paste(picture, (0, top))
        top += picture.height
    zoom = max(1, 640 // width)
    whole.resize((width * zoom, height * zoom), Image.Resampling.NEAREST).save(path)
    return path


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path)
    return path
