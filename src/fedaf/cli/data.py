"""``fedaf data``: list, inspect and download data sets."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedaf.cli.terminal import continued_by, print_line, this_command
from fedaf.common.naming import slug
from fedaf.data.registry import DATASETS, spec_of
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.data.dataset import DataSet

app = typer.Typer(name="data", help="List, inspect and download data sets.", no_args_is_help=True)

_DATA_DIR = Path("data")


@app.command("list")
def list_(data_dir: Path = _DATA_DIR) -> None:
    """List the data sets: where each one is, or how to get it.

    Args:
        data_dir: Folder that holds the data sets.
    """
    where = Column("where, or how to get it", overflow="fold")
    table = Table("name", "classes", "image", "train + test", where, box=SIMPLE, padding=(0, 1, 0, 0))
    for name in (*DATASETS, *DATASETS.plugins):
        spec = spec_of(name)
        shape = " x ".join(map(str, spec.shape))
        table.add_row(name, str(spec.num_classes), shape, spec.samples, escape(_where(name, data_dir)))
    Console().print(table)


@app.command()
def inspect(
    name: str,
    data_dir: Path = _DATA_DIR,
    image_size: Annotated[int | None, typer.Option(min=1, max=4096)] = None,
    max_unreadable: Annotated[float, typer.Option(min=0, max=1)] = 0.01,
    image_column: str | None = None,
    label_column: str | None = None,
    client_column: str | None = None,
    domain_column: str | None = None,
    out: Path | None = None,
) -> None:
    """Show class counts and channel statistics, and draw some images of each class in one PNG file.

    Args:
        name: A data set, as for --dataset.
        data_dir: Folder that holds the data sets.
        image_size: Resize image files to this side length. (default: 64, or their size if smaller)
        max_unreadable: Fraction of image files that may be unreadable.
        image_column: Column of the images or file names (parquet, labels.csv). (default: one with a usual name)
        label_column: Column of the labels. (default: one with a usual name)
        client_column: Column of the natural client. (default: client or client_id, if there)
        domain_column: Column of the domain. (default: domain, if there)
        out: PNG file for the images. (default: NAME-contact-sheet.png)
    """
    from fedaf.data import catalog
    from fedaf.data.spec import NPZ, Columns
    from fedaf.data.statistics import class_counts, domain_counts
    from fedaf.reporting import figures, tables
    from fedaf.reporting.progress import reading

    sheet = out or Path(f"{slug(Path(name).stem)}-contact-sheet.png")
    if sheet.suffix.lower() != ".png":
        message = f"--out is {sheet}, but the images are written as PNG; use a name that ends in .png."
        raise UserError(message, code="FEDAF-CLI-SHEET")
    console = Console(emoji=False)
    with reading(console) as watch:
        data = catalog.load(
            name,
            data_dir,
            image_size=image_size,
            max_unreadable=max_unreadable,
            progress=watch,
            columns=Columns(image_column, label_column, client_column, domain_column),
            needs_test=not name.startswith(NPZ),  # a condensed set has no test split
        )
    train, test = (class_counts(split, data.num_classes) for split in (data.train, data.test))
    console.print(tables.counts_table("class", train, test, data.classes))
    if data.domains:
        train, test = (domain_counts(split, len(data.domains)) for split in (data.train, data.test))
        console.print(tables.counts_table("domain", train, test, data.domains))
    for line in _described(data):
        print_line(console, line)
    print_line(console, f"Some images of each class are in {figures.contact_sheet(data, sheet)}.")


@app.command()
def fetch(name: str, data_dir: Path = _DATA_DIR, mirror: str | None = None) -> None:
    """Download the official files of a data set, verify and unpack them.

    An interrupted download continues where it stopped.
    Files that are already complete are kept.

    Args:
        name: A data set; fedaf data list shows which can be fetched.
        data_dir: Folder that holds the data sets.
        mirror: Download the same files from this URL; checksums are verified too.
    """
    from fedaf.data.fetch.fetch import fetch
    from fedaf.reporting.downloads import LiveDownloads, PlainDownloads

    console = Console()
    observer = (LiveDownloads if console.is_terminal else PlainDownloads)(console)
    with continued_by(this_command()):
        fetch(name, data_dir, mirror=mirror, observer=observer)


def _where(name: str, data_dir: Path) -> str:
    """Return where a data set is, or the command that downloads it. No data are read."""
    from fedaf.data import catalog
    from fedaf.reporting.tables import size

    spec = spec_of(name)
    if spec.origin:
        return spec.origin
    if found := catalog.locate(name, data_dir):
        return str(found)
    command = f"fedaf data fetch {name}" + (f" --data-dir {quote(str(data_dir))}" if data_dir != _DATA_DIR else "")
    return f"{command} ({size(sum(file.size for file in spec.files))})" if spec.files else f"{command} explains how"


def _described(data: "DataSet") -> Iterator[str]:
    """Yield sentences about the images, their channels, and files that were skipped."""
    from fedaf.data.statistics import channel_statistics

    mean, std, images = channel_statistics(data.train)
    channels, height, width = data.train.images.shape[1:]
    yield f"Images: {channels} x {height} x {width} (channels, height, width)."
    yield f"Mean per channel over {images} training images: {_figures(mean)}; normalised with {_figures(data.mean)}."
    yield f"Standard deviation: {_figures(std)}; normalised with {_figures(data.std)}."
    if data.train.clients is not None:
        sizes = data.train.clients.bincount(minlength=len(data.clients))
        yield f"Natural clients: {len(data.clients)}, with {sizes.min()} to {sizes.max()} training images each."
    if data.unreadable:
        more = f" and {len(data.unreadable) - 10} more" if len(data.unreadable) > 10 else ""
        yield f"Skipped {len(data.unreadable)} unreadable files: {', '.join(data.unreadable[:10])}{more}."


def _figures(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
