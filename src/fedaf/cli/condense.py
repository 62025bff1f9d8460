"""``fedaf condense``: condense a data set of one owner."""

import shlex
from typing import Annotated

import typer

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.options import Flags, Out, Preset, Quiet, Settings, Verbose, with_flags
from fedaf.cli.terminal import Terminal, continued_by

_WITHOUT = ("dataset", "test_dataset", "clients", "alpha", "participation", "policy", "track")


@with_flags(without=_WITHOUT)
def condense(
    *,
    dataset: Annotated[str, typer.Argument(help="Data set to condense: a name, folder:DIR, npz:FILE or parquet:DIR.")],
    flags: Flags,
    preset: Preset = None,
    settings: Settings = None,
    out: Out = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Condense a data set into a few images per class, without a federation.

    The folder gets the images (npz and parquet), a card, and the settings to train on them.
    A fresh model is trained on the images alone, and its test accuracy is printed and put in the card.
    Try [bold]fedaf condense digits --ipc 10 --preset quick[/].
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    from fedaf.federation.run_directory import check_new
    from fedaf.reporting import tables
    from fedaf.runs.condense import RUN, STEM, condense_into, one_owner

    given = configuration.merge(options.layered(None, flags, settings), {"data": {"name": dataset}})
    built = one_owner(given, preset)
    target = out or options.new_directory(built.data.name, "condensed", f"seed{built.run.seed}")
    check_new(target)  # before the data are read, which may take long
    experiment = terminal.prepare(built)
    terminal.announce(experiment)
    terminal.say(f"Writing to {target}.")
    file, words = target / f"{STEM}.npz", options.resume_command("run", target / RUN)
    after = shlex.join(["fedaf", "export", str(target / RUN), "--condensed", "--out", str(file)])
    with continued_by(f"{words} && {after}"):
        found = condense_into(experiment, target, terminal.observer())
    accuracy = tables.per_cent(found.accuracy)
    terminal.result(f"{len(found.condensed)} condensed images; a fresh model trained on them has accuracy {accuracy}.")
    written = ", ".join(path.name for path in sorted(target.glob(f"{STEM}*")))
    terminal.result(f"The set is in {target}: {written}. Keep {target / RUN} for yourself.")
