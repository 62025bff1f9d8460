"""The paper's figures from our runs: gain over FedAvg by images per class, features by domain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from fedaf.reporting.figures import new_figure, plain, save


def gains(by_label: Mapping[str, Mapping[int, Sequence[float]]], path: Path, *, title: str) -> Path:
    """Draw the gain over FedAvg in points by images per class, one line per label."""
    figure, axes = new_figure(6.4, 4.0)
    for label, by_ipc in by_label.items():
        sizes = sorted(by_ipc)
        axes.plot(sizes, [fmean(by_ipc[size]) for size in sizes], marker="o", markersize=4, label=plain(label))
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="images per class", ylabel="points over FedAvg", title=plain(title))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return save(figure, path)


def scatter(points: np.ndarray, groups: Sequence[int], names: Sequence[str], path: Path, *, title: str) -> Path:
    """Draw points of the plane, one colour per group."""
    figure, axes = new_figure(5.6, 4.8)
    of_group = np.asarray(groups)
    for number, name in enumerate(names):
        mine = points[of_group == number]
        axes.scatter(mine[:, 0], mine[:, 1], s=6, alpha=0.7, label=plain(name))
    axes.set(xticks=[], yticks=[], title=plain(title))
    axes.legend(fontsize=8, markerscale=2)
    return save(figure, path)
