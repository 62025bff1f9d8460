"""``fedaf demo``: a comparison of a few minutes that shows what fedaf does, on data that need no download."""

import json
import os
from pathlib import Path
from typing import Annotated

from fedaf.cli.compare import start
from fedaf.cli.options import Quiet, Verbose, output_option, run_option
from fedaf.cli.terminal import Stopped, Terminal
from fedaf.common.files import write_atomically
from fedaf.common.version import __version__
from fedaf.errors import UserError

RECORD = "demo.json"

_METHODS = ("fedaf-plus", "fedaf", "fedavg", "pooled", "local")
_SETTINGS = {"data": {"name": "digits"}, "partition": {"alpha": 0.02, "clients": 10}}
_MOST_NAMED = 3  # files in an error message


def demo(
    out: Annotated[Path, output_option()] = Path("runs/demo"),
    rounds: Annotated[int, run_option(min=1)] = 8,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Compare FedAF+, FedAF and FedAvg on real digits, split among ten very different clients.

    It takes about three minutes on a CPU and downloads nothing.
    It replaces the results of an earlier demo, but no folder with other files in it.

    Args:
        out: Directory for the results.
        rounds: Rounds of each method.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    _clear(out)
    from fedaf.federation.run_directory import check_new
    from fedaf.runs.comparison import Plan, planned

    check_new(out)
    terminal.say(
        "Ten clients with very different shares of 1,797 handwritten digits train one model together, without sending"
        " their own images. pooled (all data in one place) and local (every client alone) are references."
    )
    plan = Plan(planned(_METHODS, {**_SETTINGS, "run": {"rounds": rounds}}))
    try:
        start(out, plan, terminal)
    except Stopped:
        _record(out)
        raise
    _record(out)
    terminal.say("Open the report in a browser: it has the curves, and the images that were shared.")
    terminal.say(
        "Then try: fedaf run --dataset digits --alpha 0.02, or fedaf run --dataset folder:PATH on your images."
    )


def _files(folder: Path) -> set[str]:
    """Return the paths of all files below a folder. A link is a file, wherever it leads."""
    found = set()
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        found |= {Path(parent, name).relative_to(folder).as_posix() for name in [*names, *links]}
    return found


def _record(folder: Path) -> None:
    """Write down which files are the demo's, so that the next demo may replace them."""
    content = {"fedaf": __version__, "files": sorted(_files(folder) | {RECORD})}
    write_atomically(folder / RECORD, json.dumps(content, indent=2) + "\n")


def _clear(folder: Path) -> None:
    """Delete an earlier demo.

    Raises:
        UserError: The folder holds files that no demo wrote.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return  # a file is refused later, as in every command
    try:
        own = set(json.loads((folder / RECORD).read_text())["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"{folder} is not empty and is not the folder of an earlier demo"
        raise UserError(f"{what}; choose another folder with --out.", code="FEDAF-CLI-DEMO") from error
    found = _files(folder)
    if others := sorted(found - own):
        named = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
        what = f"{folder} has files that the demo did not write: {named}"
        raise UserError(f"{what}; move them, or choose another folder with --out.", code="FEDAF-CLI-DEMO")
    for name in found - {RECORD}:
        (folder / name).unlink()
    for parent, folders, _ in os.walk(folder, topdown=False):
        for name in folders:
            Path(parent, name).rmdir()
    (folder / RECORD).unlink()  # last, so that a demo that was stopped here can be repeated
