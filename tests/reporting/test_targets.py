"""Targets of any metric, and the names that ``--metrics`` accepts."""

import pytest

from fedaf.federation.metrics import ACCURACY, METRICS
from fedaf.reporting.targets import TABLES, Target, check_metrics, rounds_to
from support.errors import raises


def test_a_number_is_an_accuracy_and_a_name_another_metric():
    assert Target.parse("90") == Target(90, ACCURACY)
    assert Target.parse("balanced_accuracy=85.5") == Target(85.5, METRICS["balanced_accuracy"])
    assert Target.parse("loss=120") == Target(120, METRICS["loss"])
    assert [Target.parse(text).header for text in ("90", "worst_client=50", "loss=0.5", "macro_auc=0.9")] == [
        "rounds to 90 %",
        "rounds to worst client 50 %",
        "rounds to test loss 0.5",
        "rounds to macro AUC 0.9",
    ]


@pytest.mark.parametrize(
    "text", ["", "x", "loss", "0", "101", "nan", "macro_auc=1.5", "loss=0", "loss=inf", "accuracy="]
)
def test_a_value_that_the_metric_cannot_have_is_refused(text):
    with raises("FEDAF-CLI-TARGET") as refused:
        Target.parse(text)
    assert repr(text) in str(refused.value)


def test_an_unknown_metric_is_refused_with_the_nearest():
    with raises("FEDAF-METRIC-UNKNOWN") as refused:
        Target.parse("balanced=85")
    assert "did you mean 'balanced_accuracy'?" in str(refused.value)
    with raises("FEDAF-METRIC-UNKNOWN") as refused:
        check_metrics(["loss", "perclass"])
    assert "did you mean 'per_class'?" in str(refused.value)
    check_metrics([*METRICS, *TABLES])


def test_rounds_to_a_target_go_by_what_is_better():
    assert rounds_to([2.0, None, 0.5, 0.4], 0.5, METRICS["loss"]) == "3"
    assert rounds_to([2.0, 0.9], 0.5, METRICS["loss"]) == "never"
    assert rounds_to([None, 40.0], 40) == "2"


def test_a_result_without_the_metric_has_no_rounds_to_it():
    old = {"curve": [10.0, 20.0]}
    assert Target(15).rounds([old]) == "2"
    assert Target(15, METRICS["balanced_accuracy"]).rounds([old]) == "·"
    new = {**old, "curves": {"accuracy": [10.0, 20.0], "loss": [3.0, 1.0]}}
    assert Target(2.0, METRICS["loss"]).rounds([new]) == "2"
    assert Target(0.1, METRICS["loss"]).rounds([new]) == "never"
