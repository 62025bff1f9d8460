"""The paper's figures from our runs: learning curves over seeds, gain by images per class, features by domain."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from fedaf.reporting.figures import new_figure, plain, save


def seed_curves(curves: Mapping[str, Sequence[Sequence[float]]], path: Path, *, title: str) -> Path:
    """Test accuracy by round: a line for each label, the mean over its seeds, in a band from the lowest to the highest
    of them."""
    figure, axes = new_figure(6.4, 4.0)
    for label, of_label in curves.items():
        values = np.array(of_label)
        rounds = np.arange(1, values.shape[1] + 1)
        (line,) = axes.plot(rounds, values.mean(0), marker="o", markersize=3, label=plain(label))
        if len(values) > 1:
            axes.fill_between(rounds, values.min(0), values.max(0), alpha=0.15, color=line.get_color(), linewidth=0)
    axes.set(xlabel="round", ylabel="test accuracy (%)", title=plain(title))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return save(figure, path)


def gains(by_label: Mapping[str, Mapping[int, Sequence[float]]], path: Path, *, title: str) -> Path:
    """Points won over FedAvg by images per class, a line for each label."""
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
    """Points of the plane, in a colour for each group."""
    figure, axes = new_figure(5.6, 4.8)
    of_group = np.asarray(groups)
    for number, name in enumerate(names):
        mine = points[of_group == number]
        axes.scatter(mine[:, 0], mine[:, 1], s=6, alpha=0.7, label=plain(name))
    axes.set(xticks=[], yticks=[], title=plain(title))
    axes.legend(fontsize=8, markerscale=2)
    return save(figure, path)
