"""Pictures: learning curves, who holds what, the condensed images of a run; the images of a data set."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedaf.data.dataset import DataSet
from fedaf.data.statistics import spread
from fedaf.federation.run_directory import CONDENSED, INDEX, PARTITION, RESULT

_GALLERY_ROWS = 40
_SHEET_ROWS = 20
_DPI = 120


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
    for axis, count in ((axes.xaxis, clients), (axes.yaxis, classes)):
        axis.set_ticks(range(0, count, 1 + count // 30))
    return _save(figure, path)


def gallery(run: Path, path: Path) -> Path | None:
    """What was shared: a row for each class of each client, as many as a page holds."""
    folder = run / CONDENSED
    if not (folder / INDEX).is_file():
        return None
    index = json.loads((folder / INDEX).read_text())
    labels, strips, room = [], [], _GALLERY_ROWS
    for client, facts in sorted(index.items()):
        with Image.open(folder / f"{client}.png") as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
        step = facts["height"] + 1
        for row, label in enumerate(facts["classes"][:room]):
            labels.append(f"{client}: {label}")
            strips.append(
                np.pad(pixels[row * step : (row + 1) * step - 1], ((0, 1), (0, 0), (0, 0)), constant_values=255)
            )
        room = max(0, room - len(facts["classes"]))
    return _sheet(labels, strips, "condensed images by client and class", path)


def contact_sheet(data: DataSet, path: Path, *, columns: int = 10) -> Path:
    """Training images: a row for each class, as many as a page holds, its images taken at even distances."""
    labels, strips = [], []
    _, _, height, width = data.train.images.shape
    for label in range(min(data.num_classes, _SHEET_ROWS)):
        rows = (data.train.labels == label).nonzero().flatten()
        images = data.train.images[rows[spread(len(rows), columns)]]
        pixels = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        strip = np.full((height + 1, columns * (width + 1), 3), 255, np.uint8)
        for column, image in enumerate(pixels.permute(0, 2, 3, 1).numpy()):
            left = column * (width + 1)
            strip[:height, left : left + width] = image
        labels.append(data.classes[label] if data.classes else str(label))
        strips.append(strip)
    left_out = f", the first {len(strips)} of {data.num_classes} classes" if data.num_classes > len(strips) else ""
    return _sheet(labels, strips, f"{data.name}{left_out}", path)


def _sheet(labels: Sequence[str], strips: Sequence[np.ndarray], title: str, path: Path) -> Path:
    """Rows of pictures with labels beside them."""
    whole = np.concatenate(strips)
    height = len(strips) * min(0.6, max(0.28, len(strips[0]) / _DPI)) + 0.6
    figure, axes = _figure(max(3.0, min(12.0, 1.4 + (height - 0.6) * whole.shape[1] / whole.shape[0])), height)
    axes.imshow(whole, interpolation="nearest")
    axes.set_xticks([])
    names = [label.replace("$", r"\$") for label in labels]  # a name is no formula
    axes.set_yticks([(i + 0.5) * whole.shape[0] / len(strips) for i in range(len(strips))], names, fontsize=7)
    axes.tick_params(length=0)
    axes.set_title(title.replace("$", r"\$"), fontsize=9)
    for side in axes.spines.values():
        side.set_visible(False)
    return _save(figure, path)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _save(figure: Any, path: Path) -> Path:
    figure.savefig(path)
    return path
