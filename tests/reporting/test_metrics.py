"""Tables of the metrics that were asked for; results of older versions have none of them."""

import io
import json

from rich.console import Console
from rich.table import Table

from fedaf.federation.metrics import METRICS
from fedaf.reporting.fitting import fitted
from fedaf.reporting.metrics import confusion_table, tables_of
from support import ROOT

OLD = {"method": "old", "seed": 0, "curve": [10.0], "best_accuracy": 10.0, "last_accuracy": 10.0}
LAST = {
    "balanced_accuracy": 55.0,
    "loss": 1.25,
    "macro_auc": None,
    "client_spread": {"mean": 50.0, "std": 5.0, "lowest": 45.0, "highest": 55.0},
    "accuracy_by_class": [100.0, None, 25.0],
    "confusion": [[2, 0, 0], [0, 0, 0], [1, 2, 1]],
}
NEW = {**OLD, "method": "new", "classes": ["cat", "no[bold]dog", "owl"], "metrics": {"last": LAST, "best": LAST}}


def cells(table: Table) -> list[list[str]]:
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_a_row_for_each_method_and_a_column_for_each_metric():
    (table,) = tables_of([NEW, OLD], ["accuracy", "loss", "macro_auc", "worst_client"])
    assert [column.header for column in table.columns] == [
        "method",
        "accuracy %",
        "test loss",
        "macro AUC",
        "worst client %",
    ]
    assert cells(table) == [["new", "10.00", "1.2500", "·", "45.00"], ["old", "10.00", "·", "·", "·"]]


def test_more_metrics_than_fit_side_by_side_go_on_below_and_no_word_is_broken():
    shown = io.StringIO()
    (whole,) = tables_of([{**NEW, "method": "fedaf-plus"}], list(METRICS))
    parts = fitted(whole, 80)
    assert len(parts) > 1
    for table in parts:
        Console(file=shown, width=80).print(table)
    assert "…" not in shown.getvalue()
    for metric in METRICS.values():
        assert all(word in shown.getvalue() for word in metric.title.split()), metric.title


def test_a_row_for_each_class_by_its_name():
    (table,) = tables_of([OLD, NEW], ["per_class"])
    assert [column.header for column in table.columns] == ["class", "test samples", "new"]
    assert cells(table) == [["cat", "2", "100.00"], [r"no\[bold]dog", "0", "·"], ["owl", "4", "25.00"]]
    (sentence,) = tables_of([OLD], ["per_class"])
    assert "unknown" in sentence


def test_a_confusion_matrix_has_true_classes_in_rows():
    assert cells(confusion_table(NEW)) == [
        ["0 cat", "2", "·", "·"],
        [r"1 no\[bold]dog", "·", "·", "·"],
        ["2 owl", "1", "2", "1"],
    ]
    assert "unknown" in confusion_table(OLD)
    wide = {**NEW, "metrics": {"last": {"confusion": [[0] * 100] * 100}}}
    assert "metrics.last.confusion" in confusion_table(wide)


def test_every_committed_result_still_tabulates():
    results = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("*/*/result.json"))[:20]]
    assert len(results) == 20
    for result in results:
        table, *_ = tables_of([result], [*METRICS, "per_class", "confusion"])
        assert cells(table)[0][1] == f"{result['last_accuracy']:.2f}"


def test_numbers_of_several_seeds_are_means_with_their_deviation():
    other = {**NEW, "last_accuracy": 20.0, "metrics": {"last": {**LAST, "loss": 1.75, "macro_auc": 0.5}}}
    table, classes = tables_of([NEW, other], ["accuracy", "loss", "macro_auc", "per_class"])
    assert cells(table) == [["new", "15.00 ± 7.07", "1.5000 ± 0.3536", "·"]]
    assert cells(classes)[2] == ["owl", "4", "25.00 ± 0.00"]


def test_the_page_on_metrics_explains_every_metric():
    page = (ROOT / "docs" / "howto" / "metrics.md").read_text()
    section = page.partition("## Samples left out")[0]
    assert [name for name in [*METRICS, "per_class", "confusion"] if f"`{name}`" not in section] == []
