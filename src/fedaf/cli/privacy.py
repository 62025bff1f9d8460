"""``fedaf privacy``: plan a run with differential privacy, audit one, and show what a site has released."""

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedaf.cli.options import split
from fedaf.cli.privacy_audit import audit
from fedaf.cli.terminal import print_line
from fedaf.config.toml import validate
from fedaf.errors import UserError
from fedaf.privacy.expectation import ADVICE, HOPELESS, LITTLE, directions, enough_samples, rho_of
from fedaf.privacy.options import PrivacyOptions

if TYPE_CHECKING:
    from fedaf.privacy.accountant import Budget
    from fedaf.privacy.ledger_file import LedgerEntry

app = typer.Typer(
    name="privacy", help="Plan and audit privacy, and show what a site has released.", no_args_is_help=True
)

_RULE = (
    "rho compares the noise with the distance between classes, which is measured on digits (images of one channel) and "
    "CIFAR-10 (others). It is a rule of thumb: other data may lose more or less."
)


@app.command()
def plan(
    epsilon: Annotated[float, typer.Option()],
    counts: Annotated[str, typer.Option(metavar="N,N,...")],
    delta: float = 1e-5,
    networks: int = PrivacyOptions.model_fields["networks"].default,
    releases: int = 1,
    count_share: float = 0.05,
    knowledge_share: float = 0.0,
    ipc: Annotated[int, typer.Option(min=1)] = 10,
    shape: Annotated[str, typer.Option(metavar="CxHxW")] = "1x28x28",
) -> None:
    """Show the noise that a budget needs, and how much of the data it leaves.

    Nothing is read or released. Try [bold]fedaf privacy plan --epsilon 4 --counts 500,5000[/].

    Args:
        epsilon: Epsilon of all releases of a client in the run together.
        counts: Samples of a class that a client may have, such as 500,5000.
        delta: Delta of the guarantee.
        networks: Random networks whose features a release describes.
        releases: Releases that share the budget.
        count_share: Share of the budget for the number of samples of each class.
        knowledge_share: Share of the budget for the mean logits of CDC and LGKM.
        ipc: Condensed images per class.
        shape: Channels, height and width of an image; fedaf data list shows those of known data sets.
    """
    from fedaf.privacy.accountant import Budget

    samples, image = _samples(counts), _image(shape)
    given = {"epsilon": epsilon, "delta": delta, "networks": networks, "releases": releases}
    shares = {"count_share": count_share, "knowledge_share": knowledge_share}
    privacy = validate(PrivacyOptions, given | shares, table="privacy")
    budget, dimensions = Budget.of(privacy), directions(privacy, ipc, image)
    found = {n: rho_of(budget, n, dimensions, image[0]) for n in samples}
    console = Console()
    console.print(_budget_table(budget, releases))
    table = Table("samples of a class", "rho", "expect", box=SIMPLE)
    for n, rho in found.items():
        table.add_row(str(n), f"{rho:.2g}", _verdict(rho))
    console.print(table)
    print_line(console, _RULE)
    if hopeless := [n for n, rho in found.items() if rho > HOPELESS]:
        enough = enough_samples(budget, dimensions, image[0])
        which = ", ".join(map(str, hopeless))
        print_line(
            console,
            f"WARNING: with {which} samples of a class the noise is larger than what tells classes apart. Before such "
            f"a run, {ADVICE}: rho is 1 with {enough} samples.",
        )


app.command()(audit)


@app.command()
def ledger(folder: Path, delta: float = 1e-5, max_epsilon: float | None = None) -> None:
    """Show every release of a site, what it spent over all runs, and what is left.

    A folder with the ledgers of several clients is shown client by client.

    Args:
        folder: Folder of a ledger, or a folder that has ledgers in its subfolders.
        delta: The delta that epsilon refers to.
        max_epsilon: The limit of the site's policy. (default: show only what is spent)
    """
    from fedaf.privacy.ledger_file import LEDGER, is_ledger, read_entries

    if not 0 < delta < 1 or (max_epsilon is not None and not 0 < max_epsilon < math.inf):
        given = f"--delta is {delta:g} and --max-epsilon is {'not set' if max_epsilon is None else max_epsilon}"
        message = f"{given}; expected a delta between 0 and 1 and an epsilon above 0."
        raise UserError(message, code="FEDAF-PRIVACY-OPTION")
    if not folder.is_dir():
        what = f"there is no folder {folder}; give the folder of a ledger"
        raise UserError(f"{what}, which has a {LEDGER}.", code="FEDAF-PRIVACY-LEDGER-NOT-FOUND")
    console = Console()
    places = [place for place in (folder, *folder.rglob("*")) if place.is_dir() and is_ledger(place)]
    found = {place: read_entries(place) for place in sorted(places)}
    if not any(found.values()):
        print_line(console, f"There is no release in {folder} or below it.")
    for place, entries in found.items():
        if entries:
            _show_ledger(console, place, entries, delta, max_epsilon)


def _show_ledger(
    console: Console, place: Path, entries: "list[LedgerEntry]", delta: float, max_epsilon: float | None
) -> None:
    from fedaf.privacy.accountant import epsilon_of
    from fedaf.privacy.ledger_file import spent_mu

    fixed = [Column(name, no_wrap=True) for name in ("time (UTC)", "round", "release", "mu", "asked", "noise")]
    run_column = Column("run", overflow="fold")
    table = Table(fixed[0], run_column, *fixed[1:], box=SIMPLE, padding=(0, 1, 0, 0))
    for entry in entries:
        asked = "" if entry.epsilon is None else f"{entry.epsilon:g}, {entry.delta:g}"
        noise = "NOT PRIVATE" if entry.simulated else "private"
        run = "".join(letter if letter.isprintable() else "?" for letter in entry.run)  # servers choose it
        cells = (entry.time[:19], run, str(entry.round), entry.release[:8], f"{entry.mu:.4g}", asked, noise)
        table.add_row(*map(Text, cells))
    print_line(console, f"{place}:")
    console.print(table)
    spent = epsilon_of(spent_mu(entries), delta)
    line = f"Spent: epsilon {spent:.4g} at delta {delta:g} (mu {spent_mu(entries):.4g}), entries: {len(entries)}."
    if max_epsilon is not None:
        line += f" Left of max_epsilon {max_epsilon:g}: {_left(spent_mu(entries), max_epsilon, delta)}."
    print_line(console, line)
    if simulated := sum(entry.simulated for entry in entries):
        print_line(console, f"NOT PRIVATE: simulated noise from a seed in {simulated} of {len(entries)} releases.")


def _left(spent: float, max_epsilon: float, delta: float) -> str:
    """Say which epsilon one more run could have."""
    from fedaf.privacy.accountant import epsilon_of, mu_of

    rest = mu_of(max_epsilon, delta) ** 2 - spent**2
    return f"one run with epsilon {epsilon_of(math.sqrt(rest), delta):.4g}" if rest > 0 else "nothing"


def _budget_table(budget: "Budget", releases: int) -> Table:
    table = Table("for one image, added or removed", "value", box=SIMPLE)
    table.add_row("epsilon, delta", f"{budget.epsilon:g}, {budget.delta:g}")
    table.add_row("epsilon if an image is replaced", f"{budget.replace_one_epsilon:.3f}")
    table.add_row("mu of the run", f"{budget.mu:.4f}")
    table.add_row("noise multiplier z = 1 / mu", f"{budget.z:.3f}")
    each = "" if releases == 1 else f", in each of {releases} releases"
    table.add_row(f"noise multiplier of the sums{each}", f"{budget.sums_noise:.3f}")
    table.add_row(f"noise on the samples of a class{each}", f"± {budget.counts_noise:.1f}")
    if budget.knowledge_noise is not None:
        table.add_row(f"noise multiplier of the logits{each}", f"{budget.knowledge_noise:.3f}")
    return table


def _verdict(rho: float) -> str:
    if rho > HOPELESS:
        return "expect failure"
    return "little loss" if rho < LITTLE else "noticeable loss"


def _samples(counts: str) -> list[int]:
    parts = split(counts)
    if not parts or not all(re.fullmatch(r"[1-9]\d{0,11}", part) for part in parts):
        message = f"--counts is {counts!r}; expected numbers of samples, such as 500,5000."
        raise UserError(message, code="FEDAF-PRIVACY-OPTION")
    return list(dict.fromkeys(map(int, parts)))


def _image(shape: str) -> tuple[int, int, int]:
    """Return the channels, height and width of an image."""
    match = re.fullmatch(r"([1-9]\d{0,2})x([1-9]\d{0,4})x([1-9]\d{0,4})", shape)
    if not match:
        message = f"--shape is {shape!r}; expected channels, height and width, such as 3x32x32."
        raise UserError(message, code="FEDAF-PRIVACY-OPTION")
    channels, height, width = map(int, match.groups())
    return channels, height, width
