"""``fedaf privacy audit``: can shared images tell which images they were made from?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.options import ConfigFile, Flags, Preset, Quiet, Settings, Verbose, output_option, with_flags
from fedaf.cli.terminal import Terminal, print_line
from fedaf.common.files import write_durably

if TYPE_CHECKING:
    from torch import Tensor

    from fedaf.privacy.half_out import HalfOut
    from fedaf.privacy.membership import Membership
    from fedaf.runs.audit import MembershipAudit

_KIND = "Canaries: outlier (random black and white images) or natural (training images)."
_OUT = "Write the result to this JSON file, which only you can read."
_PICTURES = (
    "Also write a PNG file, which only you can read: shared images beside the private images that are nearest to them."
)
_MEANING = (
    "Each canary was in the data with probability 1/2; an AUC near 0.5 and a bound of 0 mean that these guesses told "
    "little more than chance. The bound is a lower one: a high value proves that images leak, but a low value proves "
    "nothing, because another attack may find more."
)


@with_flags(without=("alpha", "clients", "participation", "track"))
def audit(
    *,
    config: ConfigFile = None,
    flags: Flags,
    preset: Preset = None,
    settings: Settings = None,
    canaries: Annotated[int, typer.Option("--canaries", metavar="N", help="Number of canaries.")] = 500,
    kind: Annotated[str, typer.Option("--kind", metavar="outlier|natural", help=_KIND)] = "outlier",
    out: Annotated[Path | None, output_option("--out", metavar="FILE", help=_OUT)] = None,
    pictures: Annotated[Path | None, output_option("--pictures", metavar="FILE", help=_PICTURES)] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Guess from the shared images of a run which images it was made from.

    The run has one client with all training data, and additional images (canaries), each with probability 1/2.
    The result describes private data: it is for the owner of the data. Nothing is kept without --out or --pictures.
    Try [bold]fedaf privacy audit --dataset digits --preset quick[/].
    """
    from fedaf.runs.audit import audit_experiment, check, refuse_run_directory, single_client

    terminal = Terminal(verbose=verbose, quiet=quiet)
    for option, file in (("--out", out), ("--pictures", pictures)):
        options.check_file(option, file)
        refuse_run_directory(option, file)
    known = check(kind, canaries)
    built = configuration.build(options.layered(config, flags, settings), preset=preset)
    experiment = terminal.prepare(single_client(built))
    drawn: list[bytes] = []

    def look(shared: "tuple[Tensor, Tensor]", private: "tuple[Tensor, Tensor]") -> None:
        from fedaf.privacy.neighbours import neighbours
        from fedaf.reporting.figures import beside_nearest

        if pictures is not None:
            drawn.append(beside_nearest(neighbours(shared, private), experiment.dataset.classes))

    found = audit_experiment(experiment, canaries=canaries, kind=known, observer=terminal.observer(), look=look)
    _report(found, terminal)
    if pictures is not None:
        write_durably(pictures, drawn[0])
        terminal.say(f"The pictures are in {pictures}. They show private images: keep the file where the data are.")
    if out is not None:
        _write(out, found)
        terminal.say(f"The result is in {out}.")


def _report(found: "MembershipAudit", terminal: Terminal) -> None:
    """Print the figures of an audit, and what they mean."""
    from fedaf.reporting import tables

    title = f"{found.method} on {found.dataset}: {found.features.canaries} {found.kind} canaries, "
    title += f"{found.shared_images} shared images"
    confidence = f"{100 * found.features.confidence:g} %"
    table = Table("guesses by", "AUC", "right guesses", f"epsilon at least ({confidence})", title=title, box=SIMPLE)
    for name, guesses in (("mean features", found.features), ("nearest image", found.nearest)):
        table.add_row(name, *_row(guesses))
    terminal.show(table)
    halves = {"pixels": found.half_out_pixels, "features": found.half_out_features}
    for space, half in halves.items():
        if half is not None:
            print_line(terminal.console, _half_out_sentence(space, half))
    if sentence := tables.audit_sentence({"method": found.method, "copy_audit": found.copy_audit}):
        print_line(terminal.console, sentence)
    print_line(terminal.console, _MEANING)


def _row(guesses: "Membership") -> tuple[str, str, str]:
    return f"{guesses.auc:.2f}", f"{guesses.correct} of {guesses.guesses}", f"{guesses.epsilon:.2f}"


def _half_out_sentence(space: str, half: "HalfOut") -> str:
    near = f"In {space}, the nearest canary of {100 * half.share:.0f} % of the shared images is one that was in"
    evidence = f"p = {half.p_value:.2g}, one-sided, {half.neighbours} different canaries"
    return f"{near} (50 % if the images tell nothing about it; {evidence})."


def _write(path: Path, found: "MembershipAudit") -> None:
    """Write an audit as JSON that only its owner can read, in place of any earlier file."""
    from fedaf.common.readable import readable_json

    write_durably(path, f"{readable_json(found.to_dict())}\n".encode())
