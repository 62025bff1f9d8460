"""``fedaf policy``: what a client lets a server ask of it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(name="policy", help="A client's own policy: what a server may ask of it.", no_args_is_help=True)

_REFUSED = 1


@app.command()
def show(
    file: Annotated[Path | None, typer.Argument(help="A policy to check and show. (default: the default one)")] = None,
) -> None:
    """Print a policy as TOML with the meaning of each bound; without FILE the default, to start one's own from.

    Try [bold]fedaf policy show > policy.toml[/].
    """
    from fedaf import config as configuration

    policy = configuration.read_policy(str(file) if file is not None else configuration.DEFAULT_POLICY)
    print(configuration.policy_toml(policy), end="")


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="The configuration a server wants to run, such as a config.toml.")],
    policy: Annotated[str, typer.Option(help="The client's policy: a TOML file, or default.")] = "default",
    dataset: Annotated[
        str | None,
        typer.Option(help="The client's own data (folder:DIR, npz:FILE, ...). (default: every client of the split)"),
    ] = None,
) -> None:
    """Say which clients would take part in a run, and why the others would refuse. Nothing is computed or sent.

    Exits with 1 if any client would refuse.
    """
    from rich.box import SIMPLE
    from rich.table import Table

    from fedaf import config as configuration
    from fedaf.experiment import prepare
    from fedaf.protocol import Refused

    bounds = configuration.read_policy(policy)
    given = configuration.read_toml(config)
    if dataset is not None:
        given = configuration.merge(given, configuration.from_flags(dataset=dataset))
        given = configuration.merge(given, {"partition": {"kind": "iid", "clients": 1}})
    experiment = prepare(configuration.build(given))
    table, refusals = Table("client", "samples", "", box=SIMPLE), 0
    for client, counts in experiment.counts.items():
        verdict = "takes part"
        try:
            bounds.admit(experiment.config.method_name, experiment.method.discloses(counts), counts, sent=0)
        except Refused as refusal:
            verdict, refusals = f"refuses: {refusal}", refusals + 1
        table.add_row(client if dataset is None else "you", str(sum(counts)), verdict)
    Console().print(table)
    if refusals:
        raise typer.Exit(_REFUSED)
