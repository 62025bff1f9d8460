"""``fedaf policy``: show a client's policy, and check a run against it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fedaf import config as configuration
from fedaf.errors import Refused

if TYPE_CHECKING:
    from fedaf.protocol.policy import Forecast, Policy

app = typer.Typer(
    name="policy", help="Show and check a client's policy: what a server may ask of it.", no_args_is_help=True
)

_REFUSED = 1


@app.command()
def show(file: Annotated[str, typer.Argument()] = "default") -> None:
    """Print a policy as TOML, with a comment for each limit.

    Without FILE, print the built-in policy, as a starting point for your own.
    Try [bold]fedaf policy show > policy.toml[/].

    Args:
        file: Policy file to check and print, or default for the built-in policy.
    """
    from fedaf.config.policies import policy_toml, read_policy

    print(policy_toml(read_policy(file)), end="")


@app.command()
def check(config: Path, policy: str = "default", dataset: str | None = None) -> None:
    """Show which clients would take part in a run, what they would disclose, and why others would refuse.

    Nothing is computed or sent. Images that a client sent in earlier runs are not counted here.
    The exit status is 1 if any client would refuse.

    Args:
        config: TOML file with the settings of the run that a server asks for.
        policy: TOML file, or default for the built-in policy.
        dataset: One client's data, such as folder:DIR or npz:FILE. (default: check every client of the partition)
    """
    from fedaf.config.policies import read_policy
    from fedaf.runs.experiment import disclosure, own_counts, prepare

    bounds = read_policy(policy)
    asked = configuration.build(configuration.read_toml(config))
    clients = {"you": own_counts(asked, dataset)} if dataset is not None else prepare(asked).counts
    headers = ("client", "samples", "images", "per sample", "decision")
    table, refusals = Table(*headers, box=SIMPLE), 0
    for client, counts in clients.items():
        taken, images, ratio = disclosure(asked, counts), "", ""
        private = taken.privacy if taken is not None else None
        verdict = "takes part" if taken is None or taken.fewest_samples else "takes part, with nothing to send"
        if private is not None:
            verdict = (
                f"takes part, with epsilon {private.epsilon:g} and delta {private.delta:g}, if its ledger has that left"
            )
        try:
            bounds.admit(asked.method_name, taken)
            if taken is not None and taken.images:
                whole = bounds.forecast(taken.images, counts, asked.run.rounds)
                images, ratio = str(sum(whole.images.values())), f"{whole.per_sample:.2g}"
                verdict += _limits(whole, bounds)
        except Refused as refusal:
            verdict, refusals = f"refuses: {refusal}", refusals + 1
        table.add_row(client, str(sum(counts)), images, ratio, verdict)
    Console().print(table)
    if refusals:
        raise typer.Exit(_REFUSED)


def _limits(whole: "Forecast", bounds: "Policy") -> str:
    """Say which images the limits withhold: of a class in every round, or from some round on."""
    parts = []
    if whole.left_out:
        labels, limit = ", ".join(map(str, whole.left_out)), f"max_images_per_sample {bounds.max_images_per_sample:g}"
        parts.append(f"; no images of class {labels}: too few samples for {limit}")
    if whole.limited_from is not None and whole.limited_from != whole.silent_from:
        parts.append(f"; new images of fewer classes from round {whole.limited_from}: max_total_images_per_sample")
    if whole.silent_from is not None:
        parts.append(f"; no new images from round {whole.silent_from}")
    return "".join(parts)
