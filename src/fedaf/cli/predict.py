"""``fedaf predict``: classify images with the model of a run."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedaf.cli.options import Client, Which, check_file
from fedaf.cli.terminal import print_line
from fedaf.common.files import write_atomically
from fedaf.common.naming import printable

if TYPE_CHECKING:
    from fedaf.data.readers.images import Tally
    from fedaf.runs.model import TrainedModel

CsvFile = Annotated[Path | None, typer.Option("--csv", help="Write a CSV file with the probability of every class.")]


def predict(
    run: Path, images: list[Path], csv_file: CsvFile = None, client: Client = None, which: Which = None
) -> None:
    """Classify images with the model of a run: print the file, class and probability of each image.

    Images of another size or colour mode are converted as image files are in training.

    Args:
        run: Directory of the run.
        images: Image files, or folders of them.
    """
    check_file("--csv", csv_file)  # before the images are read, which may take long
    from fedaf.data.readers.images import Tally
    from fedaf.runs import inputs
    from fedaf.runs.trained import load

    model = load(run, which=which, client=client)
    files = inputs.find_files(images)
    tally, console = Tally(len(files)), Console(emoji=False)
    predicted = _predicted(model, files, tally)
    if csv_file is None:
        _print(console, model, predicted, longest_name=max(map(len, files), default=0))
    else:
        _write(csv_file, model, predicted)
        print_line(console, f"Wrote {len(files) - len(tally.failures)} predictions to {csv_file}.")
    if tally.failures:
        raise inputs.unreadable(tally)


def _predicted(model: "TrainedModel", files: list[str], tally: "Tally") -> Iterator[tuple[str, list[float]]]:
    """Yield each file that can be read with the probabilities of its classes."""
    from fedaf.runs import inputs

    for rows, images in inputs.decoded(files, model.task.image_shape, tally):
        for row, probabilities in zip(rows, model.predict_proba(images).tolist(), strict=True):
            yield files[row], probabilities


def _print(
    console: Console, model: "TrainedModel", predicted: Iterator[tuple[str, list[float]]], *, longest_name: int
) -> None:
    longest_class = max(map(len, model.classes))
    for file, probabilities in predicted:
        top = max(probabilities)
        name = model.classes[probabilities.index(top)]
        print_line(console, f"{printable(file):{longest_name}}  {name:{longest_class}}  {top:.4f}")


def _write(path: Path, model: "TrainedModel", predicted: Iterator[tuple[str, list[float]]]) -> None:
    content = io.StringIO(newline="")
    rows = csv.writer(content)
    rows.writerow(["file", "class", "probability", *(f"p_{name}" for name in model.classes)])
    for file, probabilities in predicted:
        top = max(probabilities)
        rows.writerow([file, model.classes[probabilities.index(top)], top, *probabilities])
    write_atomically(path, content.getvalue())
