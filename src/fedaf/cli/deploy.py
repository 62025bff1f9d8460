"""``fedaf deploy``: a federation over a real network."""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedaf import config as configuration
from fedaf.cli import options
from fedaf.cli.options import Flags, Quiet, Settings, Verbose, with_flags
from fedaf.cli.terminal import Terminal, print_line
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.deploy.machines import Link, Site

app = typer.Typer(
    name="deploy", help="Run over a real network with Flower, TLS and registered nodes.", no_args_is_help=True
)

_option = partial(typer.Option, rich_help_panel="Deployment")

Folder = Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder that fedaf deploy init wrote for this machine.")]

_HERE = Path()
_INTERRUPTED = 130


@contextmanager
def _stopping(message: str) -> Iterator[None]:
    """End the command with a message on Ctrl-C in the block."""
    from fedaf.deploy.processes import ending_orderly

    try:
        with ending_orderly():
            yield
    except KeyboardInterrupt:
        print_line(Console(stderr=True), f"fedaf: stopped; {message}")
        raise SystemExit(_INTERRUPTED) from None


@app.callback()
def _require_flower() -> None:
    if importlib.util.find_spec("flwr") is None and "--help" not in sys.argv:
        what = "fedaf deploy needs Flower, which is not installed; it is in the extra flower"
        how = (
            "run pip install '.[flower]' in the checkout, or pip install 'FILE.whl[flower]' with the file of the wheel"
        )
        message = f"{what}: {how}."
        raise UserError(message, code="FEDAF-DEPLOY-NO-FLOWER")


@app.command()
@with_flags("clients", "rounds", "method", "alpha")
def demo(
    *,
    flags: Flags,
    settings: Settings = None,
    port: Annotated[int | None, _option(min=1, max=65535)] = None,
    keep: Annotated[Path | None, _option(metavar="DIR")] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Try a deployment on this machine: a server (SuperLink) and clients (SuperNodes) train on digits, over TLS.

    Creates the certificates and keys. Stops all processes at the end, also after Ctrl-C.

    Args:
        clients: Number of clients; each is a SuperNode. (default: 3)
        rounds: Communication rounds. (default: 3)
        alpha: Dirichlet concentration of the partition. (default: 0.5)
        port: Port of the SuperLink. (default: a free one)
        keep: Keep the keys, logs and results in this new folder. (default: a temporary folder)
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    from fedaf.deploy import follow
    from fedaf.deploy.init import refuse_used, trial_config
    from fedaf.deploy.processes import free_ports, refuse_taken
    from fedaf.reporting import tables

    clients = 3 if flags["clients"] is None else flags["clients"]
    shared = {
        "federation": {"min_clients": clients},
        "partition": {"clients": clients},
        "run": {"threads": max(1, (os.cpu_count() or 1) // max(1, clients))},
    }
    config = trial_config(configuration.merge(shared, options.layered(None, flags, settings)))
    if keep is not None:
        refuse_used(keep)
    if port is not None:
        refuse_taken(port)
    counts = terminal.prepare(config).counts
    if not quiet:
        terminal.show(tables.partition_table(counts))
    stopping = _stopping("everything the demo started has ended.")
    with stopping, tempfile.TemporaryDirectory(prefix="fedaf-demo-") as scratch:
        out = follow.demo(
            config,
            keep or Path(scratch) / "demo",
            sites=list(counts),
            port=port or free_ports(1)[0],
            observer=terminal.observer(),
            say=terminal.say,
        )
        terminal.report(out, draw=keep is not None)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    server: Annotated[str, _option(metavar="HOST")],
    sites: Annotated[str, _option(metavar="NAME,NAME,...")],
    config: Annotated[Path | None, options.run_option(metavar="FILE")] = None,
    port: Annotated[int, _option(min=1, max=65535)] = 8000,
    bring_certificates: Annotated[bool, _option("--bring-certificates")] = False,
) -> None:
    """Write a folder for each machine of a deployment, and a README.md that says what to run where.

    Each folder holds the settings, keys and certificates of one machine. A site's folder also holds a policy.
    Example: [bold]fedaf deploy init hospitals --server fl.example.org --sites hospital-a,hospital-b,hospital-c[/].

    Args:
        folder: New folder for the deployment.
        server: Host name or IP address at which sites reach the server.
        sites: Names of the sites.
        config: TOML file with all settings. (default: a short run on digits)
        port: Port of the server.
        bring_certificates: Use your own certificates; README.md says where to put them.
    """
    from fedaf.deploy import init as deploy_init

    names = options.split(sites)
    deploy_init.check_names(server, names)
    if config is not None:
        chosen = configuration.build(configuration.read_toml(config))
    else:
        count = len(names)
        chosen = deploy_init.trial_config({"federation": {"min_clients": count}, "partition": {"clients": count}})
    deploy_init.init(
        folder, server=server, sites=names, config=chosen, port=port, bring_certificates=bring_certificates
    )
    print_line(Console(emoji=False), f"Next: read {folder / 'README.md'}. It says what to copy where and what to run.")


@app.command()
def link(folder: Folder = _HERE, verbose: Verbose = False) -> None:
    """On the server: run Flower's SuperLink, to which the sites connect, until Ctrl-C or SIGTERM."""
    from fedaf.deploy.machines import Link

    machine = Link.read(folder)
    where = f"SuperLink on {machine.settings.host}:{machine.settings.port}"
    _serve(machine, where, verbose, "the link has ended; sites wait for it.")


@app.command()
def node(folder: Folder = _HERE, verbose: Verbose = False) -> None:
    """On a site: run Flower's SuperNode, which connects to the server, until Ctrl-C or SIGTERM."""
    from fedaf.deploy.machines import Site

    machine = Site.read(folder)
    where = f"SuperNode for {machine.settings.superlink}"
    _serve(machine, where, verbose, "the node has ended; start it again with fedaf deploy node.")


def _serve(machine: "Link | Site", where: str, verbose: bool, stopped: str) -> None:
    from fedaf.deploy import follow

    log = machine.folder / follow.LOGS / f"{machine.name}.log"
    print_line(Console(emoji=False), f"{where}, until Ctrl-C. Log: {log}")
    with _stopping(stopped):
        follow.serve(machine, show=sys.stdout.write if verbose else None)


@app.command()
@with_flags("track")
def run(
    *,
    flags: Flags,
    folder: Folder = _HERE,
    out: Annotated[Path | None, options.output_option(metavar="DIR")] = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """On the server: run the config.toml of the folder on the connected sites, and print the result.

    Ctrl-C stops the run; the same command resumes it after the last complete round.

    Args:
        out: Directory for the results; a stopped run in it is resumed. (default: run)
    """
    terminal = Terminal(verbose=verbose, quiet=quiet)
    from fedaf.deploy import follow
    from fedaf.deploy.machines import Link
    from fedaf.federation.run_directory import CONFIG

    machine = Link.read(folder)
    saved = configuration.read_toml(machine.folder / CONFIG)
    config = configuration.build(configuration.merge(saved, configuration.from_flags(**flags)))
    target = out or machine.folder / follow.RUN
    terminal.say(f"Writing to {target}.")
    terminal.say_trackers(config, target)
    with _stopping("fedaf deploy run resumes after the last complete round."):
        follow.run(machine, config, target, terminal.observer())
    terminal.report(target)


@app.command()
def renew(folder: Annotated[Path, typer.Argument(metavar="DIR")]) -> None:
    """Create a new server certificate, signed by the certificate authority of the deployment.

    Args:
        folder: Folder that fedaf deploy init wrote.
    """
    from fedaf.deploy import init as deploy_init

    expires = deploy_init.renew(folder)
    what = f"{folder / deploy_init.SERVER} has a certificate until {expires:%Y-%m-%d}"
    print_line(Console(emoji=False), f"{what}; copy server.crt and server.key to the server, and restart the link.")
