"""Tables of the metrics that a user asked for with ``--metrics``, all after the last round.

With several seeds, numbers are means with their sample standard deviation. Confusion matrices are of the first seed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedaf.federation.metrics import ACCURACY, METRICS, Metric, value_of
from fedaf.reporting.statistics import mean_and_deviation
from fedaf.reporting.tables import MOST_COLUMNS, Result, Runs, by_method, new_table

_WHY = ": the run had no test data on the server or no global model, or is of an older version"


def tables_of(results: Sequence[Result], names: Sequence[str]) -> Iterator[Table | str]:
    """Yield the tables of these metrics; a sentence in place of a table that is not known or too wide.

    Args:
        results: The contents of ``result.json`` of each run.
        names: Names of metrics, ``per_class`` and ``confusion``.
    """
    if metrics := [METRICS[name] for name in names if name in METRICS]:
        yield metrics_table(results, metrics)
    if "per_class" in names:
        known = by_method([result for result in results if _last(result).get("accuracy_by_class")])
        if known:
            yield class_table(list(known.values()))
        else:
            yield f"The accuracy of each class is unknown{_WHY}."
    if "confusion" in names:
        yield from (confusion_table(runs[0]) for runs in by_method(results).values())


def metrics_table(results: Sequence[Result], metrics: Sequence[Metric]) -> Table:
    """Compare methods by some metrics: one row per method, one column per metric."""
    headers = [f"{metric.title} {metric.unit}".strip() for metric in metrics]
    table = new_table("Metrics after the last round", ["method", *headers])
    for method, runs in by_method(results).items():
        cells = [_cell(metric, [value_of(run, metric.name) for run in runs]) for metric in metrics]
        table.add_row(escape(method), *cells)
    return table


def class_table(methods: Sequence[Runs]) -> Table:
    """Compare methods on each class: one row per class, one column per method."""
    names, first = [runs[0]["method"] for runs in methods], methods[0][0]
    table = new_table("Accuracy by class after the last round, per cent", ["class", "test samples", *names])
    for label, name in enumerate(_class_names(first)):
        cells = [_cell(ACCURACY, [_last(run)["accuracy_by_class"][label] for run in runs]) for runs in methods]
        table.add_row(escape(name), str(sum(_last(first)["confusion"][label])), *cells)
    return table


def confusion_table(result: Result) -> Table | str:
    """Show the confusion matrix of a run, or say where it is if it is too wide or why there is none."""
    matrix, method = _last(result).get("confusion"), result["method"]
    if matrix is None:
        return f"The confusion matrix of {method} is unknown{_WHY}."
    if len(matrix) > MOST_COLUMNS:
        return (
            f"The confusion matrix of {method} has {len(matrix)} classes; it is in result.json: metrics.last.confusion."
        )
    names, labels = _class_names(result), map(str, range(len(matrix)))
    title = f"Confusion matrix of {method}, seed {result['seed']} (rows: true class)"
    table = new_table(title, ["", *labels], compact=True)
    for label, row in enumerate(matrix):
        name = names[label] if names[label] == str(label) else f"{label} {names[label]}"
        table.add_row(escape(name), *(str(count) if count else "·" for count in row))
    return table


def _cell(metric: Metric, values: Sequence[float | None]) -> str:
    """Format a metric over seeds; it is unknown if it is unknown for a seed."""
    known = [value for value in values if value is not None]
    return mean_and_deviation(known, metric.digits) if len(known) == len(values) else metric.format(None)


def _last(result: Result) -> Mapping[str, Any]:
    return (result.get("metrics") or {}).get("last") or {}


def _class_names(result: Result) -> Sequence[str]:
    return result["classes"]  # type: ignore[no-any-return]
