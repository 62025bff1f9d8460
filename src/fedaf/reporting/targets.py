"""What a user wants to see of a result: targets to reach, and metrics to show. Needs no PyTorch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedaf.errors import UserError
from fedaf.federation.metrics import ACCURACY, METRICS, Metric, curve_of, find_metric
from fedaf.reporting.statistics import mean_curve

#: Tables that ``--metrics`` accepts beside the metrics, with their meaning.
TABLES = {
    "per_class": "a table of the accuracy of each class",
    "confusion": "the confusion matrix",
}
_MEANINGS = {**{name: metric.meaning for name, metric in METRICS.items()}, **TABLES}
METRICS_HELP = "Also show these metrics after the last round: " + "; ".join(
    f"{name} ({meaning})" for name, meaning in _MEANINGS.items()
)
TARGET_HELP = (
    "Report the rounds until this accuracy, in per cent, or until another metric: balanced_accuracy=85, loss=0.5. "
    "(default: the highest accuracy that all reach)"
)


@dataclass(frozen=True)
class Target:
    """A value of a metric that a method should reach."""

    value: float
    metric: Metric = ACCURACY

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read ``90``, which is an accuracy, or ``METRIC=VALUE``.

        Raises:
            UserError: There is no such metric, or it cannot have this value.
        """
        name, equals, number = text.rpartition("=")
        metric = find_metric(name.strip()) if equals else ACCURACY
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        most = math.inf if metric.most is None else metric.most
        if not (0 < value <= most and math.isfinite(value)):
            limit = "" if metric.most is None else f" and at most {most:g}"
            expected = f"a target of {metric.name} is a number above 0{limit}"
            examples = "such as --target 90, --target balanced_accuracy=85 or --target loss=0.5"
            raise UserError(f"--target is {text!r}; {expected}, {examples}.", code="FEDAF-CLI-TARGET")
        return cls(value, metric)

    @property
    def header(self) -> str:
        """The header of the column with the rounds to this target."""
        name = "" if self.metric is ACCURACY else f"{self.metric.title} "
        return f"rounds to {name}{self.value:g}{' %' if self.metric.unit else ''}"

    def rounds(self, runs: Sequence[Mapping[str, Any]]) -> str:
        """Return the first round in which a method reaches the target, ``never``, or ``·`` if the metric is unknown.

        Args:
            runs: The content of ``result.json`` of each seed; their mean curve counts.
        """
        curve = mean_curve([curve_of(run, self.metric.name) for run in runs])
        if all(value is None for value in curve):
            return "·"
        return rounds_to(curve, self.value, self.metric)


def rounds_to(curve: Sequence[float | None], target: float, metric: Metric = ACCURACY) -> str:
    """Return the first round in which a metric is at least as good as a target, or ``never``."""
    return next((str(number) for number, value in enumerate(curve, 1) if metric.reached(value, target)), "never")


def check_metrics(names: Sequence[str]) -> None:
    """Check the names given to ``--metrics``.

    Raises:
        UserError: A name is neither a metric nor a table.
    """
    for name in names:
        if name not in TABLES:
            find_metric(name, also=list(TABLES))
