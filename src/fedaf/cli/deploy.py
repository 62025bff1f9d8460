"""``fedaf deploy``: a federation over a real network."""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedaf.cli.terminal import Terminal, print_line
from fedaf.errors import UserError

app = typer.Typer(name="deploy", help="Run over a real network, on Flower: TLS, known nodes.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The folder of this machine.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but the result.")]

_HERE = Path()
_INTERRUPTED = 130


@contextmanager
def _stopping(sentence: str) -> Iterator[None]:
    """In the block, Ctrl-C ends the command with a sentence of its own."""
    from fedaf.deploy.processes import ending_orderly

    try:
        with ending_orderly():
            yield
    except KeyboardInterrupt:
        print_line(Console(stderr=True), f"fedaf: stopped; {sentence}")
        raise SystemExit(_INTERRUPTED) from None


@app.callback()
def _with_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise UserError("fedaf deploy needs Flower, which is not installed; pip install 'fedaf[flower]' brings it.")


@app.command()
def demo(
    clients: Annotated[int, typer.Option(min=1, help="Number of SuperNodes.")] = 3,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds. (default: 3)")] = None,
    method: Annotated[
        str, typer.Option(help="fedaf, feddm, fedavg, fedprox, fedbn, moon, feddyn or fedgen.")
    ] = "fedaf",
    alpha: Annotated[float | None, typer.Option(help="Dirichlet concentration. (default: 0.5)")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting: table.key=value. May be repeated.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of the SuperLink. (default: a free one)")] = None,
    keep: Annotated[
        Path | None, typer.Option(help="New folder for keys, logs and the run. (default: none stays)")
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """A whole deployment on this machine: a SuperLink and SuperNodes on loopback, TLS, known nodes, a run on digits.

    Certificates and keys are made for it; everything it started ends with it, also on Ctrl-C.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    from fedaf import config as configuration
    from fedaf.deploy import follow as deploy
    from fedaf.deploy.init import refuse_used, trial_config
    from fedaf.deploy.processes import free_ports, refuse_taken
    from fedaf.reporting import tables

    given = configuration.from_flags(clients=clients, rounds=rounds, method=method, alpha=alpha)
    shared = {"federation": {"min_clients": clients}, "run": {"threads": max(1, (os.cpu_count() or 1) // clients)}}
    config = trial_config(configuration.merge(shared, given, *map(configuration.parse_setting, settings or ())))
    if keep is not None:
        refuse_used(keep)
    if port is not None:
        refuse_taken(port)
    counts = terminal.prepare(config).counts
    if not quiet:
        terminal.console.print(tables.partition_table(counts))
    ended = _stopping("everything the demo started has ended.")
    with ended, tempfile.TemporaryDirectory(prefix="fedaf-demo-") as scratch:
        folder = keep or Path(scratch) / "demo"
        say = (lambda text: None) if quiet else (lambda text: print_line(terminal.console, text))
        out = deploy.demo(
            config,
            folder,
            sites=list(counts),
            port=port or free_ports(1)[0],
            observer=terminal.observer(),
            say=say,
        )
        terminal.report_directory(out, kept=keep is not None)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for all of it.")],
    server: Annotated[str, typer.Option(help="Name or address under which sites reach the server.")],
    sites: Annotated[str, typer.Option(help="Names of the sites, with commas between.")],
    config: Annotated[
        Path | None, typer.Option(help="What is to be run: a TOML file. (default: a trial on digits)")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the server.")] = 8000,
    bring_certificates: Annotated[
        bool, typer.Option("--bring-certificates", help="Make no certificates; the page says which are needed.")
    ] = False,
) -> None:
    """Write what a deployment needs, a folder for each machine, and a page that says what to run where.

    Each has its keys, certificates and settings; a site has a policy.
    Try [bold]fedaf deploy init hospitals --server fl.example.org --sites hospital-a,hospital-b,hospital-c[/].
    """
    from fedaf import config as configuration
    from fedaf.deploy import init as deploy_init

    names = [name.strip() for name in sites.split(",") if name.strip()]
    deploy_init.check_names(server, names)
    table = {"federation": {"min_clients": len(names)}, "partition": {"clients": len(names)}}
    chosen = (
        configuration.build(configuration.read_toml(config)) if config is not None else deploy_init.trial_config(table)
    )
    deploy_init.init(
        folder, server=server, sites=names, config=chosen, port=port, bring_certificates=bring_certificates
    )
    print_line(Console(emoji=False), f"Read {folder / 'README.md'}: it says what to copy where, and what to run.")


@app.command()
def link(folder: Folder = _HERE, verbose: Verbose = False) -> None:
    """Start the SuperLink of a server's folder, and stay with it until Ctrl-C or SIGTERM."""
    from fedaf.deploy import follow as deploy
    from fedaf.deploy.machines import Link

    machine = Link.read(folder)
    where = f"{machine.settings.host}:{machine.settings.port}"
    print_line(
        Console(emoji=False), f"SuperLink on {where}, until Ctrl-C; its log is {folder / deploy.LOGS / 'link.log'}."
    )
    with _stopping("the link has ended; sites wait for it."):
        deploy.serve(machine, show=sys.stdout.write if verbose else None)


@app.command()
def node(folder: Folder = _HERE, verbose: Verbose = False) -> None:
    """Start the SuperNode of a site's folder, and stay with it until Ctrl-C or SIGTERM."""
    from fedaf.deploy import follow as deploy
    from fedaf.deploy.machines import Site

    machine = Site.read(folder)
    where = machine.settings.superlink
    print_line(
        Console(emoji=False), f"SuperNode for {where}, until Ctrl-C; its log is {folder / deploy.LOGS / 'node.log'}."
    )
    with _stopping("the node has ended; fedaf deploy node starts it again."):
        deploy.serve(machine, show=sys.stdout.write if verbose else None)


@app.command()
def run(
    folder: Folder = _HERE,
    out: Annotated[
        Path | None, typer.Option(help="Directory of the run; one begun there goes on. (default: run)")
    ] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Run the config.toml of a server's folder on the sites that are there, follow it, and print its table.

    Ctrl-C stops the run; the same command goes on after its last whole round.
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    from fedaf import config as configuration
    from fedaf.deploy import follow as deploy
    from fedaf.deploy.machines import Link
    from fedaf.federation.run_directory import CONFIG

    machine = Link.read(folder)
    config = configuration.build(configuration.read_toml(machine.folder / CONFIG))
    target = out or machine.folder / deploy.RUN
    terminal.say_where(target)
    with _stopping("fedaf deploy run goes on after the last whole round."):
        deploy.run(machine, config, target, terminal.observer())
    terminal.report_directory(target)


@app.command()
def renew(folder: Annotated[Path, typer.Argument(metavar="DIR", help="What fedaf deploy init made.")]) -> None:
    """Make a new certificate for the server, by the authority of the deployment."""
    from fedaf.deploy import init as deploy_init

    ends = deploy_init.renew(folder)
    where = folder / deploy_init.SERVER
    print_line(
        Console(emoji=False),
        f"{where} has a certificate until {ends:%Y-%m-%d}; copy server.crt and server.key, and start the link again.",
    )
