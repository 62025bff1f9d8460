"""The two Flower apps of a federation, ``server`` and ``client``; ``transports/flower/app/pyproject.toml`` names them.

Flower imports this module for every message, so PyTorch is imported only when there is something to compute.
"""

import logging
import os
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedaf.errors import FedafError
from fedaf.transports.flower.client import client_app
from fedaf.transports.flower.node import Node

if TYPE_CHECKING:
    from fedaf.client.serving import ClientSite


def _open_site(node: Node, config: str) -> "ClientSite":
    from fedaf.runs.network import client_site

    return client_site(node, config)


def _log_to_stderr() -> None:
    """Write the log of fedaf to stderr, which Flower forwards."""
    logger = logging.getLogger("fedaf")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("fedaf: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


_log_to_stderr()
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as in the command line; has an effect only before PyTorch is loaded
client = client_app(_open_site)
server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the federation of the run config, or resume the run in its directory ``out``."""
    from fedaf.runs.network import play
    from fedaf.transports.flower.transport import FlowerTransport

    settings = {key: str(context.run_config.get(key, "")) for key in ("config", "out")}
    try:
        play(settings["config"], settings["out"], lambda **terms: FlowerTransport(grid, **terms))
    except FedafError as error:
        raise type(error)(error.labelled) from None  # the message that Flower stores for the run
