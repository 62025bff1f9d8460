"""``fedaf policy``: show a client's policy, and check a run against it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    name="policy", help="Show and check a client's policy: what a server may ask of it.", no_args_is_help=True
)

_REFUSED = 1


@app.command()
def show(
    file: Annotated[
        Path | None, typer.Argument(help="Policy file to check and print. (default: the built-in policy)")
    ] = None,
) -> None:
    """Print a policy as TOML, with a comment for each limit.

    Without FILE, print the built-in policy, as a starting point for your own.
    Try [bold]fedaf policy show > policy.toml[/].
    """
    from fedaf.config.policies import DEFAULT_POLICY, policy_toml, read_policy

    print(policy_toml(read_policy(DEFAULT_POLICY if file is None else str(file))), end="")


@app.command()
def check(
    config: Annotated[Path, typer.Argument(help="TOML file with the settings of the run that a server asks for.")],
    policy: Annotated[str, typer.Option(help="TOML file, or default for the built-in policy.")] = "default",
    dataset: Annotated[
        str | None,
        typer.Option(
            help="One client's data, such as folder:DIR or npz:FILE. (default: check every client of the partition)"
        ),
    ] = None,
) -> None:
    """Show which clients would take part in a run, and why others would refuse.

    Nothing is computed or sent. The exit status is 1 if any client would refuse.
    """
    from rich.box import SIMPLE
    from rich.table import Table

    from fedaf import config as configuration
    from fedaf.config.policies import read_policy
    from fedaf.protocol import Refused
    from fedaf.runs.experiment import disclosure, own_counts, prepare

    bounds = read_policy(policy)
    asked = configuration.build(configuration.read_toml(config))
    clients = {"you": own_counts(asked, dataset)} if dataset is not None else prepare(asked).counts
    table, refusals = Table("client", "samples", "decision", box=SIMPLE), 0
    for client, counts in clients.items():
        taken = disclosure(asked, counts)
        each_round = sum(taken.images.values()) if taken else 0
        verdict = "takes part" if taken is None or taken.fewest_samples else "takes part, with nothing to send"
        try:  # in the last round, when most has been sent
            bounds.admit(asked.method_name, taken, counts, sent=(asked.run.rounds - 1) * each_round)
        except Refused as refusal:
            verdict, refusals = f"refuses: {refusal}", refusals + 1
        table.add_row(client, str(sum(counts)), verdict)
    Console().print(table)
    if refusals:
        raise typer.Exit(_REFUSED)
