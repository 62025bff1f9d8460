"""Tables of the metrics that a user asked for with ``--metrics``, all after the last round."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from rich.markup import escape
from rich.table import Table

from fedaf.federation.metrics import ACCURACY, METRICS, Metric, value_of
from fedaf.reporting.tables import MOST_COLUMNS, plain_table

Result = Mapping[str, Any]
Item = TypeVar("Item")

_WHY = ": result.json has none, as of runs whose server has no test data"
_SIDE_BY_SIDE = 5  # columns of a table; more do not fit in 80 characters


def tables_of(results: Sequence[Result], names: Sequence[str]) -> Iterator[Table | str]:
    """Yield the tables of these metrics; a sentence in place of a table that is not known or too wide.

    Args:
        results: The contents of ``result.json`` of each run.
        names: Names of metrics, ``per_class`` and ``confusion``.
    """
    for some in _groups([METRICS[name] for name in names if name in METRICS]):
        yield metrics_table(results, some)
    if "per_class" in names:
        known = [result for result in results if _last(result).get("accuracy_by_class")]
        yield from map(class_table, _groups(known))
        if not known:
            yield f"The accuracy of each class is unknown{_WHY}."
    if "confusion" in names:
        yield from (confusion_table(result) for result in results)


def metrics_table(results: Sequence[Result], metrics: Sequence[Metric]) -> Table:
    """Compare methods by some metrics: one row per method, one column per metric."""
    headers = [f"{metric.title} {metric.unit}".strip() for metric in metrics]
    table = plain_table("Metrics after the last round", ["method", *headers])
    for result in results:
        values = [metric.format(value_of(result, metric.name)) for metric in metrics]
        table.add_row(escape(result["method"]), *values)
    return table


def class_table(results: Sequence[Result]) -> Table:
    """Compare methods on each class: one row per class, one column per method."""
    methods, lasts = [result["method"] for result in results], [_last(result) for result in results]
    table = plain_table("Accuracy by class after the last round, per cent", ["class", "test samples", *methods])
    for label, name in enumerate(_class_names(results[0])):
        accuracies = [ACCURACY.format(last["accuracy_by_class"][label]) for last in lasts]
        table.add_row(escape(name), str(sum(lasts[0]["confusion"][label])), *accuracies)
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
    table = plain_table(f"Confusion matrix of {method} (rows: true class)", ["", *labels], compact=True)
    for label, row in enumerate(matrix):
        name = names[label] if names[label] == str(label) else f"{label} {names[label]}"
        table.add_row(escape(name), *(str(count) if count else "·" for count in row))
    return table


def _last(result: Result) -> Mapping[str, Any]:
    return (result.get("metrics") or {}).get("last") or {}


def _class_names(result: Result) -> Sequence[str]:
    return result["classes"]  # type: ignore[no-any-return]


def _groups(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Divide what a table would show side by side into parts that fit in a terminal."""
    return (items[start : start + _SIDE_BY_SIDE] for start in range(0, len(items), _SIDE_BY_SIDE))
