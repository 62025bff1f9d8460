"""The ``fedaf`` command: its subcommands, and how errors end it."""

import os
import sys
from typing import Annotated, NoReturn

import click
import typer
from rich.console import Console
from typer.core import TyperGroup

from fedaf.cli import usage
from fedaf.cli.bench import bench
from fedaf.cli.compare import compare
from fedaf.cli.condense import condense
from fedaf.cli.data import app as data
from fedaf.cli.demo import demo
from fedaf.cli.deploy import app as deploy
from fedaf.cli.evaluate import evaluate
from fedaf.cli.export import export
from fedaf.cli.options import described
from fedaf.cli.policy import app as policy
from fedaf.cli.predict import predict
from fedaf.cli.privacy import app as privacy
from fedaf.cli.report import report
from fedaf.cli.reproduce import reproduce
from fedaf.cli.run import run
from fedaf.cli.settings import settings
from fedaf.cli.sweep import sweep
from fedaf.cli.terminal import Stopped, print_line
from fedaf.common.version import __version__
from fedaf.errors import FedafError, UserError

_ORDER = (
    "demo",
    "run",
    "compare",
    "sweep",
    "report",
    "condense",
    "predict",
    "evaluate",
    "export",
    "data",
    "settings",
    "reproduce",
    "policy",
    "privacy",
    "deploy",
    "bench",
)
_INTERRUPTED = 130


class _InOrder(TyperGroup):
    """Lists commands in the order in which a new user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="fedaf",
    cls=_InOrder,
    help="Aggregation-free federated learning: clients share condensed data, the server trains the model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click does
    rich_markup_mode="rich",
)
for _command in (demo, run, compare, sweep, report, condense, predict, evaluate, export, settings, reproduce, bench):
    app.command()(_command)
for _group in (data, policy, privacy, deploy):
    app.add_typer(_group)
for _group in (app, data, policy, privacy, deploy):
    for _registered in _group.registered_commands:
        assert _registered.callback is not None
        _registered.callback = described(_registered.callback)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"fedaf {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command line.

    An expected error is one sentence on stderr with its code. The exit status is 2 for wrong usage, 1 for a failure and
    130 for Ctrl-C. A traceback means a bug in fedaf.
    """
    # OpenMP threads that wait should sleep instead of spinning: 1.2 to 2.8 times as fast when other processes use one
    # of the cores, and no difference on an idle machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, click.Abort):
        code = _INTERRUPTED
    except click.exceptions.NoArgsIsHelpError:  # the help is already on the screen
        sys.exit(2)
    except click.ClickException as error:
        _fail(UserError(usage.sentence(error), code="FEDAF-CLI-USAGE"))
    except Stopped as stopped:
        print_line(Console(stderr=True), f"fedaf: stopped; continue with: {stopped}")
        sys.exit(_INTERRUPTED)
    except FedafError as error:
        _fail(error)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        advice = "check that the directory exists, is writable and has space"
        sentence = f"cannot read or write a file: {error.strerror or error}{where}; {advice}."
        _fail(UserError(sentence, code="FEDAF-CLI-FILE"))
    if code == _INTERRUPTED:  # typer turns Ctrl-C into this code
        print_line(Console(stderr=True), "fedaf: stopped.")
    sys.exit(code or 0)


def _fail(error: FedafError) -> NoReturn:
    print_line(Console(stderr=True), f"fedaf: {' '.join(error.labelled.split())}")
    sys.exit(2 if isinstance(error, UserError) else 1)
