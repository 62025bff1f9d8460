"""The result of a run, for Python users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedaf.errors import UserError
from fedaf.federation.summary import flat

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run.

    Args:
        figures: The content of ``result.json``.
        model: The trained global model, in eval mode.
        directory: The run directory; ``None`` if it was not kept.
        rounds: The metrics of each round: the lines of ``metrics.jsonl``.

    Example:
        >>> result = fedaf.run(dataset="digits", method="fedaf", alpha=0.1, rounds=3)
        >>> result
        RunResult(fedaf on digits: 3 rounds, last accuracy 93.04 %, best test round 93.04 %)
        >>> result.to_frame()[["round", "accuracy", "upload_bytes"]]
    """

    figures: Mapping[str, Any]
    model: nn.Module
    directory: Path | None
    rounds: Sequence[Mapping[str, Any]] = field(default=())

    def __repr__(self) -> str:
        f = self.figures
        played = str(f["rounds"]) + ("" if f["rounds"] == f["planned_rounds"] else f" of {f['planned_rounds']}")
        accuracies = ("last accuracy", f["last_accuracy"]), ("best test round", f["best_accuracy"])
        shown = ", ".join(f"{name} {value:.2f} %" for name, value in accuracies if value is not None)
        where = "" if self.directory is None else f", in {self.directory}"
        return f"RunResult({f['method']} on {f['dataset']}: {played} rounds{shown and ', '}{shown}{where})"

    @property
    def curve(self) -> list[float]:
        """Test accuracy after each round, in per cent."""
        return list(self.figures["curve"])

    @property
    def best_accuracy(self) -> float:
        """Test accuracy of the best round, in per cent. It is chosen on the test set, as in the paper."""
        return float(self.figures["best_accuracy"])

    @property
    def last_accuracy(self) -> float:
        """Test accuracy after the last round, in per cent."""
        return float(self.figures["last_accuracy"])

    def to_frame(self) -> "pandas.DataFrame":
        """Return the metrics as a pandas table with one row per round.

        Nested metrics have names with dots, such as ``losses.ce``. Bytes are summed over phases and clients.

        Raises:
            UserError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            what = "RunResult.to_frame needs pandas, which is not installed"
            raise UserError(f"{what}; install it with pip install pandas.", code="FEDAF-RUN-PANDAS") from error
        return pandas.DataFrame([flat(metrics) for metrics in self.rounds])
