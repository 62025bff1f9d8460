"""Figures of runs and of data sets."""

import io
import json
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image

from fedaf.data.dataset import DataSet
from fedaf.data.statistics import spread
from fedaf.federation.run_directory import CONDENSED, INDEX, PARTITION, RESULT
from fedaf.privacy.neighbours import Neighbours
from fedaf.protocol import UserError
from fedaf.reporting.colours import COLOURS, OTHER_COLOURS, REFERENCES, THICK
from fedaf.reporting.tables import by_method, title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Target = TypeVar("_Target", Path, io.BytesIO)

_GALLERY_ROWS = 40
_SHEET_ROWS = 20
_DPI = 120
_LEGEND_INCHES = 0.075  # width of a letter in the legend
_MOST_NAMES = 30  # clients whose names fit below an axis
_LONGEST_NAME = 20
_LONGEST_TITLE = 70  # characters of a line
_LARGEST_BUBBLE = 220  # area in square points
_REPORTED = {
    *("dataset", "partition", "alpha", "clients", "rounds", "seed", "method", "curve", "best_accuracy"),
    *("last_accuracy", "seconds", "upload_bytes_per_client_round", "download_bytes_per_client_round"),
}


def read_result(run: Path, *, advice: str | None = None) -> dict[str, Any]:
    """Read ``result.json`` of a finished run.

    Args:
        run: The run directory.
        advice: What to do about a damaged file, for the error message.

    Raises:
        UserError: If the file is missing or damaged.
    """
    advice = advice or f"delete it, and --resume {run} writes it again"
    found = _read(run / RESULT, advice)
    if missing := sorted(_REPORTED - found.keys()):
        raise _damaged(run / RESULT, f"it has no {', '.join(missing)}", advice)
    return found


def _damaged(path: Path, what: str, advice: str) -> UserError:
    return UserError(f"{path} is damaged: {what}; {advice}.", code="FEDAF-RUN-DAMAGED")


def _read(path: Path, advice: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(path, str(error), advice) from error
    if not isinstance(found, dict):
        raise _damaged(path, "expected a JSON object", advice)
    return found


def curves(results: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw the test accuracy of several runs by round, one line per method: the mean over its seeds."""
    return _save(curves_figure(results), path)


def curves_figure(results: Sequence[Mapping[str, Any]]) -> "Figure":
    """Return the figure that ``curves`` saves."""
    by_label = {}
    for method, runs in by_method(results).items():
        rounds = min(len(run["curve"]) for run in runs)
        by_label[method] = [run["curve"][:rounds] for run in runs]
    chance = 100 / len(classes) if (classes := results[0].get("classes")) else None  # unknown of older runs
    methods = {name: name for name in by_label}
    return _seed_curves(by_label, title=title_of(results), methods=methods, chance=chance)


def seed_curves(
    by_label: Mapping[str, Sequence[Sequence[float | None]]],
    path: Path,
    *,
    title: str,
    methods: Mapping[str, str] | None = None,
) -> Path:
    """Draw test accuracy by round, of any runs under labels of their own; see ``_seed_curves``."""
    return _save(_seed_curves(by_label, title=title, methods=methods), path)


def _seed_curves(
    by_label: Mapping[str, Sequence[Sequence[float | None]]],
    *,
    title: str,
    methods: Mapping[str, str] | None = None,
    chance: float | None = None,
) -> "Figure":
    """Draw test accuracy by round: the mean over seeds for each label, and a band from their lowest to their highest.

    An unknown accuracy is a gap in its line. The method of a label, if it is given in ``methods``, sets the colour; the
    second line of a method is dashed. ``chance`` is the accuracy of guessing, a dotted line.
    """
    figure, axes = _new_figure(6.4 + _LEGEND_INCHES * max(map(len, by_label)), 4.0)
    others, drawn = cycle(OTHER_COLOURS), set()
    for label, of_seeds in by_label.items():
        method = (methods or {}).get(label, "")
        colour, line = REFERENCES.get(method) or (COLOURS.get(method) or next(others), "-")
        style = {"color": colour, "linewidth": THICK.get(method, 1.2), "linestyle": "--" if colour in drawn else line}
        drawn.add(colour)
        values = np.array(of_seeds, np.float64)
        rounds = np.arange(1, values.shape[1] + 1)
        axes.plot(rounds, values.mean(0), marker="o", markersize=3, label=_plain(label), **style)
        if len(values) > 1:
            axes.fill_between(rounds, values.min(0), values.max(0), alpha=0.15, color=colour, linewidth=0)
    if chance is not None:
        axes.axhline(chance, color="grey", linewidth=0.8, linestyle=":", label="chance")
    axes.set(xlabel="round", ylabel="test accuracy (%)")
    _set_title(axes, title)
    if max(len(of_seeds[0]) for of_seeds in by_label.values()) == 1:
        axes.set_xticks([1])
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside right center")  # inside it would cover lines
    return figure


def bubbles(run: Path, path: Path) -> Path:
    """Draw the split of a run: a circle for each class of each client, with an area proportional to its samples."""
    file, advice = run / PARTITION, "run it again in a new directory"
    found = _read(file, advice)
    try:
        counts = found["counts"]
        _, _ = np.array(list(counts.values()), np.float64).shape
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise _damaged(file, "it has no counts by client and class", advice) from error
    return draw_bubbles(counts, path, _titled("samples per class", run), class_names=_class_names(run))


def draw_bubbles(
    counts: Mapping[str, Sequence[int]],
    path: Path,
    title: str = "samples per class",
    class_names: Sequence[str] = (),
) -> Path:
    """Draw a circle for each class of each client, with an area proportional to its samples."""
    grid = np.array(list(counts.values()), np.float64)
    clients, classes = grid.shape
    figure, axes = _new_figure(max(4.0, min(16.0, 1.5 + 0.4 * clients)), max(3.0, min(12.0, 1.5 + 0.3 * classes)))
    x, y = np.meshgrid(np.arange(clients), np.arange(classes), indexing="ij")
    most = grid.max()
    axes.scatter(x.ravel(), y.ravel(), s=_LARGEST_BUBBLE * grid.ravel() / most, alpha=0.7)
    for samples in _legend_sizes(int(most)):
        axes.scatter([], [], s=_LARGEST_BUBBLE * samples / most, alpha=0.7, color="C0", label=str(samples))
    figure.legend(title="samples", title_fontsize=8, fontsize=8, loc="outside right upper", labelspacing=1.2)
    axes.set(xlabel="client", ylabel="class")
    _set_title(axes, title)
    labelled = range(0, classes, 1 + classes // 30)
    if len(class_names) == classes:
        axes.set_yticks(labelled, [_short(class_names[label]) for label in labelled], fontsize=7)
    else:
        axes.set_yticks(labelled)
    if clients <= _MOST_NAMES:
        axes.set_xticks(range(clients), [_short(name) for name in counts], rotation=90, fontsize=7)
    else:
        axes.set_xticks(range(0, clients, 1 + clients // 30))
    return _save(figure, path)


def _legend_sizes(most: int) -> list[int]:
    """Return the samples of up to three circles of the legend: the largest one, and round numbers well below it."""
    magnitude = 10 ** (len(str(most)) - 1)
    below = [size for size in (magnitude // 10, magnitude // 2) if size]
    return [*below, most]


def gains(by_label: Mapping[str, Mapping[int, Sequence[float]]], path: Path, *, title: str) -> Path:
    """Draw the gain over FedAvg in points by images per class, one line per label."""
    figure, axes = _new_figure(6.4, 4.0)
    for label, by_ipc in by_label.items():
        sizes = sorted(by_ipc)
        axes.plot(sizes, [fmean(by_ipc[size]) for size in sizes], marker="o", markersize=4, label=_plain(label))
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="images per class", ylabel="points over FedAvg", title=_plain(title))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return _save(figure, path)


def scatter(points: np.ndarray, groups: Sequence[int], names: Sequence[str], path: Path, *, title: str) -> Path:
    """Draw points of the plane, one colour per group."""
    figure, axes = _new_figure(5.6, 4.8)
    of_group = np.asarray(groups)
    for number, name in enumerate(names):
        mine = points[of_group == number]
        axes.scatter(mine[:, 0], mine[:, 1], s=6, alpha=0.7, label=_plain(name))
    axes.set(xticks=[], yticks=[], title=_plain(title))
    axes.legend(fontsize=8, markerscale=2)
    return _save(figure, path)


def gallery(run: Path, path: Path) -> Path | None:
    """Draw the shared images: a row for each class of each client, as many as fit on a page."""
    folder = run / CONDENSED
    if not (folder / INDEX).is_file():
        return None
    advice = f"delete {folder} to continue without its images"
    index = _read(folder / INDEX, advice)
    try:
        labels, strips = _shared(folder, index, _class_names(run))
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"it does not match the images beside it ({type(error).__name__}: {error})"
        raise _damaged(folder / INDEX, what, advice) from error
    method = f"condensed images of {facts['method']}" if (facts := _facts(run)) else "condensed images"
    title = _titled(f"{method} by client and class", run)
    return _sheet(labels, strips, title, path) if strips else None


def _shared(folder: Path, index: Mapping[str, Any], class_names: Sequence[str]) -> tuple[list[str], list[np.ndarray]]:
    labels, strips, room = [], [], _GALLERY_ROWS
    for client, facts in sorted(index.items()):
        with Image.open(folder / f"{client}.png") as sheet:
            pixels = np.asarray(sheet.convert("RGB"))
        step = facts["height"] + 1
        for row, label in enumerate(facts["classes"][:room]):
            labels.append(f"{client}: {class_names[label] if label < len(class_names) else label}")
            strip = pixels[row * step : (row + 1) * step - 1]
            strips.append(np.pad(strip, ((0, 1), (0, 0), (0, 0)), constant_values=255))
        room = max(0, room - len(facts["classes"]))
    return labels, strips


def contact_sheet(data: DataSet, path: Path, *, columns: int = 10) -> Path:
    """Draw training images of a data set: a row of evenly spaced samples for each class, as many as fit on a page."""
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


def beside_nearest(found: Sequence[Neighbours], class_names: Sequence[str]) -> bytes:
    """Draw each shared image beside the private images that are nearest to it, as a PNG for the owner of the data."""
    labels, strips = [], []
    most = max((len(each.nearest) for each in found), default=0)
    for each in found[:_GALLERY_ROWS]:
        name = class_names[each.label] if each.label < len(class_names) else str(each.label)
        labels.append(f"{name}: {', '.join(f'{psnr:.1f}' for psnr in each.psnr)} dB")
        _, height, width = each.shared.shape
        strip = np.full((height + 1, (most + 1) * (width + 1) + 3, 3), 255, np.uint8)
        for column, image in enumerate([each.shared, *each.nearest]):
            left = column * (width + 1) + (3 if column else 0)  # a gap after the shared image
            pixels = image[:3] if len(image) >= 3 else image[:1].expand(3, -1, -1)
            strip[:height, left : left + width] = pixels.permute(1, 2, 0).numpy()
        strips.append(strip)
    title = "shared, and the nearest private"
    buffer = io.BytesIO()
    _sheet(labels, strips, title, buffer)
    return buffer.getvalue()


def _sheet(labels: Sequence[str], strips: Sequence[np.ndarray], title: str, path: _Target) -> _Target:
    """Draw rows of images with a label beside each row."""
    whole = np.concatenate(strips)
    height = len(strips) * min(0.6, max(0.28, len(strips[0]) / _DPI)) + 0.6
    beside = max(1.4, 0.3 + _LEGEND_INCHES * max(map(len, labels)))
    figure, axes = _new_figure(max(3.0, min(12.0, beside + (height - 0.6) * whole.shape[1] / whole.shape[0])), height)
    axes.imshow(whole, interpolation="nearest")
    axes.set_xticks([])
    middles = [(i + 0.5) * whole.shape[0] / len(strips) for i in range(len(strips))]
    axes.set_yticks(middles, [_plain(label) for label in labels], fontsize=7)
    axes.tick_params(length=0)
    _set_title(axes, title)
    for side in axes.spines.values():
        side.set_visible(False)
    return _save(figure, path)


def _class_names(run: Path) -> Sequence[str]:
    """Return the names of the classes of a run; none if it is not finished, or older than these names."""
    return _facts(run).get("classes") or ()


def _titled(what: str, run: Path) -> str:
    """Return the title of a picture of a run: what it shows, and the setting of the run if that is known."""
    facts = _facts(run)
    return f"{what}: {title_of([facts])}" if facts else what


def _facts(run: Path) -> Mapping[str, Any]:
    """Return the content of ``result.json``, or nothing if there is none yet."""
    return read_result(run) if (run / RESULT).is_file() else {}


def _set_title(axes: Any, title: str) -> None:
    """Set the title above the axes, on several lines if it is long."""
    axes.set_title("\n".join(map(_plain, textwrap.wrap(title, _LONGEST_TITLE))), fontsize=9)


def _short(name: str) -> str:
    """Return the name of a client or class as an axis shows it."""
    return _plain(name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…")


def _plain(name: str) -> str:
    """Escape a name, so that matplotlib does not read it as a formula."""
    return name.replace("$", r"\$")


def _new_figure(width: float, height: float) -> "tuple[Figure, Any]":
    from fedaf.reporting.notebook import NotebookFigure  # without pyplot: no display, no global state

    figure = NotebookFigure(figsize=(width, height), dpi=_DPI, layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, path: _Target) -> _Target:
    with warnings.catch_warnings():  # a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        figure.savefig(path)
    return path
