"""``fedaf export``: write the model of a run as a file for other programs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedaf.cli.options import Client, Which, check_file
from fedaf.cli.terminal import print_line
from fedaf.common.files import write_atomically


def export(
    run: Path,
    format_: Annotated[str, typer.Option("--format", metavar="torch|onnx")] = "torch",
    out: Path | None = None,
    client: Client = None,
    which: Which = None,
) -> None:
    """Write the model of a run as one file, for torch.export.load or an ONNX runtime.

    It takes uint8 images (N, C, H, W) and gives the probability of each class; normalisation is in the file.
    The class names are stored in it too.

    Args:
        run: Directory of the run.
        format_: torch (a .pt2 file), or onnx, which needs the packages onnx and onnxscript.
        out: The file. (default: in the folder model/ of the run, named after the model)
    """
    from fedaf.federation.model_folder import FOLDER
    from fedaf.runs import export as exporting
    from fedaf.runs.trained import load

    exporting.check_format(format_)
    check_file("--out", out)
    model = load(run, which=which, client=client)
    content = exporting.export(model, format_)
    if out is None:
        out = run / FOLDER / f"{client or model.which}{exporting.suffix(format_)}"
        out.parent.mkdir(exist_ok=True)
    write_atomically(out, content)
    shape = ", ".join(map(str, model.task.image_shape))
    print_line(Console(emoji=False), f"Wrote {out}: uint8 images [N, {shape}] to {len(model.classes)} probabilities.")
