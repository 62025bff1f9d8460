"""The metrics of a run: what a line of ``metrics.jsonl`` says about the model, and the numbers that can be compared.

Every number that tables, ``--metrics`` and ``--target`` know is declared here once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from fedaf.common.naming import nearest
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.training.scores import Scores

Line = Mapping[str, Any]

#: The key of the confusion matrix, which is large if there are many classes.
CONFUSION = "confusion"
#: The keys of a line that describe the model; ``result.json`` has them for the last and for the best round.
MODEL_KEYS = (
    *("accuracy", "balanced_accuracy", "macro_auc", "loss", "accuracy_by_domain", "accuracy_by_class"),
    *("accuracy_by_client", "client_spread", "personal_accuracy", "personal_own_accuracy", CONFUSION),
)


@dataclass(frozen=True)
class Metric:
    """A number that describes the model after each round.

    Args:
        name: Its name in ``result.json`` (``curves``) and on the command line.
        title: Its name in a table.
        meaning: What it is, for the help.
        read: Returns it from a line of ``metrics.jsonl``, or from ``metrics.last`` or ``metrics.best`` of
            ``result.json``; ``None`` if it is unknown there.
        higher_is_better: Whether a higher value is better.
        unit: ``%`` or empty.
        most: The largest possible value, if there is one.
    """

    name: str
    title: str
    meaning: str
    read: Callable[[Line], float | None]
    higher_is_better: bool = True
    unit: str = "%"
    most: float | None = 100.0

    def reached(self, value: float | None, target: float) -> bool:
        """Return whether a value is at least as good as a target; an unknown value is not."""
        return value is not None and (value >= target if self.higher_is_better else value <= target)

    @property
    def digits(self) -> int:
        """Decimals to show: two of per cent, four of other numbers."""
        return 2 if self.unit == "%" else 4

    def format(self, value: float | None) -> str:
        """Format a value without its unit."""
        return "·" if value is None else f"{value:.{self.digits}f}"


def _at(*path: str) -> Callable[[Line], float | None]:
    """Read the number at a path of keys."""

    def read(line: Line) -> float | None:
        found: Any = line
        for key in path:
            found = (found or {}).get(key)
        return found  # type: ignore[no-any-return]

    return read


def _mean_of(key: str) -> Callable[[Line], float | None]:
    """Read the mean over clients."""

    def read(line: Line) -> float | None:
        found = line.get(key)
        return sum(found.values()) / len(found) if found else None

    return read


_DECLARED = (
    Metric("accuracy", "accuracy", "correct predictions, with domains the mean over them", _at("accuracy")),
    Metric("balanced_accuracy", "balanced accuracy", "mean of the accuracy of each class", _at("balanced_accuracy")),
    Metric("macro_auc", "macro AUC", "mean area under the ROC curves", _at("macro_auc"), unit="", most=1.0),
    Metric("loss", "test loss", "mean cross-entropy", _at("loss"), higher_is_better=False, unit="", most=None),
    Metric("worst_client", "worst client", "lowest accuracy of a client", _at("client_spread", "lowest")),
    Metric("best_client", "best client", "highest accuracy of a client", _at("client_spread", "highest")),
    Metric("client_mean", "mean of clients", "mean accuracy over clients", _at("client_spread", "mean")),
    Metric(
        *("client_std", "deviation of clients", "standard deviation of the accuracy over clients"),
        _at("client_spread", "std"),
        higher_is_better=False,
    ),
    Metric(
        *("personal_accuracy", "personal accuracy", "personal models on the clients' test data, mean over clients"),
        _mean_of("personal_accuracy"),
    ),
    Metric(
        *("personal_own_accuracy", "personal, own labels", "the same on each client's own label distribution"),
        _mean_of("personal_own_accuracy"),
    ),
)
#: All metrics by name.
METRICS = {metric.name: metric for metric in _DECLARED}
ACCURACY = METRICS["accuracy"]


@dataclass(frozen=True)
class Spread:
    """How much the accuracy differs between clients, each with equal weight.

    Args:
        mean: Mean over clients.
        std: Standard deviation over clients, which are the whole population (division by their number).
        lowest: Accuracy of the worst client.
        highest: Accuracy of the best client.
    """

    mean: float
    std: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, by_client: Mapping[str, float]) -> "Spread | None":
        """Return the spread of these accuracies; ``None`` without clients."""
        values = list(by_client.values())
        return cls(fmean(values), pstdev(values), min(values), max(values)) if values else None


def find_metric(name: str, *, also: Sequence[str] = ()) -> Metric:
    """Return the metric of this name.

    Args:
        name: The name.
        also: Other names to list as accepted in the error message.

    Raises:
        UserError: There is no such metric.
    """
    if name not in METRICS:
        known = [*METRICS, *also]
        what = f"there is no metric {name!r}{nearest(name, known)}"
        raise UserError(f"{what}; expected one of {', '.join(known)}.", code="FEDAF-METRIC-UNKNOWN")
    return METRICS[name]


def line_of(scores: "Scores") -> dict[str, Any]:
    """Return the entries of a line of ``metrics.jsonl`` for the scores of a round."""
    return {
        "accuracy": scores.accuracy,
        **({"accuracy_by_domain": scores.by_domain} if scores.by_domain else {}),
        "balanced_accuracy": scores.balanced_accuracy,
        "macro_auc": scores.macro_auc,
        "loss": scores.loss,
        "accuracy_by_class": scores.by_class,
        CONFUSION: scores.confusion,
    }


def client_lines(by_client: Mapping[str, float]) -> dict[str, Any]:
    """Return the entries of a line for the accuracies of clients; none if they are unknown."""
    spread = Spread.of(by_client)
    return {} if spread is None else {"accuracy_by_client": by_client, "client_spread": asdict(spread)}


def of_model(line: Line) -> dict[str, Any]:
    """Return the part of a line that describes the model, with its round."""
    return {key: line[key] for key in ("round", *MODEL_KEYS) if key in line}


def curves(lines: Sequence[Line]) -> dict[str, list[float | None]]:
    """Return every metric by round, except those that no round has."""
    found = {name: [metric.read(line) for line in lines] for name, metric in METRICS.items()}
    return {name: curve for name, curve in found.items() if any(value is not None for value in curve)}


def curve_of(result: Mapping[str, Any], name: str) -> list[float | None]:
    """Return a metric by round, from the content of ``result.json``; unknown values are ``None``.

    Results of versions that recorded only the accuracy have no other curve.
    """
    known = {"accuracy": result["curve"], **result.get("curves", {})}
    return list(known.get(name) or [None] * len(result["curve"]))


def value_of(result: Mapping[str, Any], name: str, *, best: bool = False) -> float | None:
    """Return a metric after the last round of a run, from the content of ``result.json``.

    Args:
        result: The content of ``result.json``.
        name: Name of the metric.
        best: Take the round with the best test accuracy instead.

    Returns:
        The value, or ``None`` if it is unknown.
    """
    if ACCURACY.name == name:
        return result["best_accuracy" if best else "last_accuracy"]  # type: ignore[no-any-return]
    return METRICS[name].read((result.get("metrics") or {}).get("best" if best else "last") or {})
