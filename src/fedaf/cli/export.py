"""``fedaf export``: write the model or the condensed images of a run as a file for other programs."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedaf.cli.options import Client, Which, check_file
from fedaf.cli.terminal import print_line
from fedaf.common.files import write_atomically
from fedaf.errors import UserError


def export(
    run: Path,
    condensed: Annotated[bool, typer.Option("--condensed")] = False,
    format_: Annotated[str | None, typer.Option("--format", metavar="torch|onnx|npz|parquet")] = None,
    out: Path | None = None,
    client: Client = None,
    which: Which = None,
) -> None:
    """Write the model of a run as one file, or with --condensed the images that its server trained on.

    A model is for torch.export.load or an ONNX runtime: it takes uint8 images (N, C, H, W) and gives the probability
    of each class; normalisation and class names are in the file.
    Condensed images come with a card and with settings to train on them. They are refused if a client's policy does
    not allow publication.

    Args:
        run: Directory of the run.
        condensed: Write the condensed images instead of the model.
        format_: For a model torch (a .pt2 file), or onnx, which needs the packages onnx and onnxscript; for condensed
            images npz or parquet. (default: torch; by the ending of --out, or npz)
        out: The file. (default: in the folder model/ or condensed/ of the run)
    """
    check_file("--out", out)
    if not condensed and format_ in ("npz", "parquet"):
        what = f"the format {format_} is for condensed images; add --condensed, or use torch or onnx for the model."
        raise UserError(what, code="FEDAF-EXPORT-FORMAT")
    if condensed:
        _export_condensed(run, format_ or _by_ending(out), out, client=client, which=which)
        return
    from fedaf.federation.model_folder import FOLDER
    from fedaf.runs import export as exporting
    from fedaf.runs.trained import load

    format_ = format_ or "torch"
    exporting.check_format(format_)
    model = load(run, which=which, client=client)
    content = exporting.export(model, format_)
    if out is None:
        out = run / FOLDER / f"{client or model.which}{exporting.suffix(format_)}"
        out.parent.mkdir(exist_ok=True)
    write_atomically(out, content)
    shape = ", ".join(map(str, model.task.image_shape))
    print_line(Console(emoji=False), f"Wrote {out}: uint8 images [N, {shape}] to {len(model.classes)} probabilities.")


def _by_ending(out: Path | None) -> str:
    """Return the format of condensed images if the user names none."""
    return "parquet" if out is not None and out.suffix == ".parquet" else "npz"


def _export_condensed(run: Path, format: str, out: Path | None, **of_models: str | None) -> None:
    """Write the condensed images of a run, and print how to train on them."""
    if given := [f"--{name}" for name, value in of_models.items() if value is not None]:
        what = f"{given[0]} chooses a model, and --condensed exports images"
        raise UserError(f"{what}; leave one of them out.", code="FEDAF-EXPORT-CONDENSED")
    from fedaf.runs.condense import card_file, export_condensed, settings_file
    from fedaf.runs.condensed import tested_dataset

    file, found = export_condensed(run, format=format, out=out)
    console, beside = Console(emoji=False), f"{card_file(file).name} and {settings_file(file).name}"
    print_line(console, f"Wrote {file}: {len(found.condensed)} condensed images; beside it {beside}.")
    command = ["fedaf", "run", str(settings_file(file)), "--dataset", f"{format}:{file}"]
    command += ["--test-dataset", tested_dataset(found.config) or "DATASET"]
    if found.config.data.dir != "data":
        command += ["--data-dir", found.config.data.dir]
    print_line(console, f"Train on it with: {shlex.join(command)}")
