"""The result of a run, for Python users."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch import nn

from fedaf.errors import UserError
from fedaf.federation.summary import flat
from fedaf.reporting.figures import curves_figure
from fedaf.runs.inputs import Images
from fedaf.runs.model import TrainedModel

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class RunResult:
    """The result of a run.

    Args:
        figures: The content of ``result.json``.
        trained: The trained global model with its class names: the best one if ``data.selection`` set images aside to
            choose it by, else the last one. ``None`` if there is none.
        directory: The run directory; ``None`` if it was not kept.
        rounds: The metrics of each round: the lines of ``metrics.jsonl``.

    Example:
        >>> result = fedaf.run(dataset="digits", method="fedaf", alpha=0.1, rounds=3)
        >>> result
        RunResult(fedaf on digits: 3 rounds, last accuracy 93.04 %, best test round 93.04 %)
        >>> result.to_frame()[["round", "accuracy", "upload_bytes"]]
    """

    figures: Mapping[str, Any]
    trained: TrainedModel | None
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
    def model(self) -> nn.Module:
        """The network of ``trained``, in eval mode. It takes normalised images and returns logits.

        Raises:
            UserError: No round was played, or the method has no global model.
        """
        return self._trained.module

    @property
    def _trained(self) -> TrainedModel:
        if self.trained is None:
            what = "the run has no global model, because no round was played or its method has none"
            raise UserError(f"{what}; use fedaf.load(DIRECTORY, client=...).", code="FEDAF-MODEL-NOT-GLOBAL")
        return self.trained

    @property
    def curve(self) -> list[float | None]:
        """Test accuracy after each round, in per cent; ``None`` where no client of a network has test data."""
        return list(self.figures["curve"])

    @property
    def best_accuracy(self) -> float | None:
        """Test accuracy of the best round, in per cent. It is chosen on the test set, as in the paper."""
        return self.figures["best_accuracy"]  # type: ignore[no-any-return]

    @property
    def last_accuracy(self) -> float | None:
        """Test accuracy after the last round, in per cent; ``None`` if no round was played."""
        return self.figures["last_accuracy"]  # type: ignore[no-any-return]

    def to_frame(self) -> "pandas.DataFrame":
        """Return the metrics as a pandas table with one row per round.

        Nested metrics have names with dots, such as ``losses.ce``. Bytes are summed over phases and clients.

        Raises:
            UserError: pandas is not installed.
        """
        return needs_pandas("RunResult.to_frame").DataFrame([flat(metrics) for metrics in self.rounds])

    def plot(self) -> "Figure":
        """Return a matplotlib figure of the test accuracy by round. Notebooks show it; ``savefig`` writes it."""
        return curves_figure([self.figures])

    def predict(self, images: Images) -> list[str]:
        """Return the class name of each image, by ``trained.predict``.

        Args:
            images: Files or folders, Pillow images, or uint8 arrays or tensors.

        Raises:
            UserError: The images are of another kind, a file cannot be read, or there is no global model.
        """
        return self._trained.predict(images)


def needs_pandas(what: str) -> ModuleType:
    """Return the module pandas, or raise ``UserError`` if ``what`` cannot be done without it."""
    try:
        return import_module("pandas")
    except ImportError as error:
        message = f"{what} needs pandas, which is not installed; install it with pip install pandas."
        raise UserError(message, code="FEDAF-RUN-PANDAS") from error
