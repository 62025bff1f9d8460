"""Paired differences between the methods of a comparison, over seeds: for people and for programs."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedaf.federation.metrics import ACCURACY, METRICS, Metric, value_of
from fedaf.reporting.statistics import PairedDifference, deviation, paired_difference
from fedaf.reporting.tables import Result, by_method, new_table

_RUN = (
    *("method", "reference", "seed", "rounds", "best_accuracy", "last_accuracy"),
    *("selected_round", "selected_accuracy"),
)
_COST = ("upload_bytes_per_client_round", "download_bytes_per_client_round", "seconds")


EXPLANATION = (
    "A verdict needs an interval that does not cover zero (Student's t, 95 %). 'undecided' does not mean equal: more "
    "seeds narrow the interval."
)
ONE_SEED = "One seed gives no verdict: differences may be chance. Add seeds, for example --seeds 0-4."


@dataclass(frozen=True)
class Measure:
    """A figure that methods are compared by.

    Args:
        name: Its name in files.
        title: Its name in tables.
        read: Reads it from a ``result.json``; ``None`` if the run does not have it.
        higher_is_better: Whether a larger value is better.
        digits: Decimals to show.
    """

    name: str
    title: str
    read: Callable[[Result], float | None] = field(repr=False)
    higher_is_better: bool = True
    digits: int = 2

    def by_seed(self, results: Sequence[Result]) -> dict[int, float]:
        """Return the figure of each run of a method that has it."""
        found = {result["seed"]: self.read(result) for result in results}
        return {seed: value for seed, value in found.items() if value is not None}


#: The figures that ``fedaf compare`` judges methods by. Runs without ``data.selection`` have no selected accuracy.
MEASURES = (
    Measure("best_accuracy", "best test round %", lambda result: result["best_accuracy"]),
    Measure("last_accuracy", "last %", lambda result: result["last_accuracy"]),
    Measure("selected_accuracy", "selected round %", lambda result: result.get("selected_accuracy")),
)


@dataclass(frozen=True)
class Compared:
    """The difference of one method to another, in one figure.

    Args:
        method: The method.
        against: The method that it is compared with.
        measure: The figure.
        difference: ``method - against`` over seeds.
        reference: Whether the method is a reference, which is not judged.
    """

    method: str
    against: str
    measure: Measure
    difference: PairedDifference
    reference: bool

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        return "reference" if self.reference else self.difference.verdict


def measures(metrics: Sequence[str]) -> list[Measure]:
    """Return the figures to judge methods by: best and last accuracy, and these metrics after the last round.

    Args:
        metrics: Names of metrics; other names are left out.
    """
    asked = [METRICS[name] for name in metrics if name in METRICS and name != ACCURACY.name]
    return [*MEASURES, *(_measure(metric) for metric in asked)]


def _measure(metric: Metric) -> Measure:
    return Measure(
        metric.name,
        f"{metric.title} {metric.unit}".strip(),
        lambda result: value_of(result, metric.name),
        metric.higher_is_better,
        metric.digits,
    )


def differences(results: Sequence[Result], against: str, measures: Sequence[Measure] = MEASURES) -> list[Compared]:
    """Compare every method with one of them, seed by seed.

    Args:
        results: The results of all runs.
        against: The method to compare the others with.
        measures: The figures to compare.
    """
    methods = by_method(results)
    found = []
    for method, runs in methods.items():
        for measure in measures if method != against else ():
            theirs = measure.by_seed(methods[against])
            difference = paired_difference(measure.by_seed(runs), theirs, higher_is_better=measure.higher_is_better)
            if difference is not None:
                found.append(Compared(method, against, measure, difference, bool(runs[0].get("reference"))))
    return found


def differences_table(compared: Sequence[Compared]) -> Table | None:
    """Show paired differences with their 95 % intervals and verdicts; ``None`` if there is only one seed."""
    judged = [one for one in compared if one.difference.low is not None]
    if not judged:
        return None
    seeds = max(one.difference.seeds for one in judged)
    title = f"Difference to {judged[0].against}, paired over {seeds} seeds"
    table = new_table(title, ["method and figure", "mean", "95 % interval", "verdict"])
    for one in judged:
        found, digits = one.difference, one.measure.digits
        interval = f"{found.low:+.{digits}f} to {found.high:+.{digits}f}"
        table.add_row(escape(f"{one.method}, {one.measure.title}"), f"{found.mean:+.{digits}f}", interval, one.verdict)
    return table


def as_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the figures of all runs, one row per run: all metrics after the last round, personal accuracy and cost.

    A figure that does not apply is ``None``.
    """
    rows = []
    for result in results:
        personal = result.get("personal") or {}
        own = {f"personal_{which}_accuracy": personal.get(f"{which}_accuracy") for which in ("best", "last")}
        metrics = {name: value_of(result, name) for name in METRICS if name != "accuracy" and "personal" not in name}
        costs = {key: result[key] for key in _COST}
        rows.append({**{key: result.get(key) for key in _RUN}, **metrics, **own, **costs})
    return rows


def as_csv(results: Sequence[Result]) -> str:
    """Return the rows of ``as_rows`` as CSV, one line per run."""
    text, rows = io.StringIO(), as_rows(results)
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(
    results: Sequence[Result], compared: Sequence[Compared], measures: Sequence[Measure] = MEASURES
) -> dict[str, Any]:
    """Return the means and deviations of all methods, and their paired differences."""
    methods = {
        method: {measure.name: _summary(by_seed) for measure in measures if (by_seed := measure.by_seed(runs))}
        for method, runs in by_method(results).items()
    }
    found = [
        {"method": one.method, "against": one.against, "figure": one.measure.name}
        | {**asdict(one.difference), "verdict": one.verdict}
        for one in compared
    ]
    return {"methods": methods, "differences": found}


def _summary(by_seed: Mapping[int, float]) -> dict[str, Any]:
    values, named = list(by_seed.values()), {str(seed): value for seed, value in by_seed.items()}
    return {"mean": fmean(values), "deviation": deviation(values), "by_seed": named}
