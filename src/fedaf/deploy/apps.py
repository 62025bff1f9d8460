"""The two Flower apps of a federation: ``flwr run`` finds them by the names ``server`` and ``client``. Importing this
is quick; what computes is imported when there is something to compute."""

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

log = logging.getLogger(__name__)


def _open_site(node: Node, config: str) -> "ClientSite":
    from fedaf.runs.sites import client_site

    return client_site(node, config)


def _talk() -> None:
    """Flower shows what its apps print: there our log goes."""
    ours = logging.getLogger("fedaf")
    if not ours.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("fedaf: %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)


_talk()
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does, and before PyTorch is loaded
client = client_app(_open_site)
server = ServerApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the federation of the run config, or go on with the one in its ``out``."""
    from fedaf.runs.network import play
    from fedaf.transports.flower.transport import FlowerTransport

    settings = {key: str(context.run_config.get(key, "")) for key in ("config", "out")}
    try:
        play(settings["config"], settings["out"], lambda **terms: FlowerTransport(grid, **terms))
    except FedafError as error:
        raise type(error)(str(error)) from None  # a sentence, in Flower's list of runs too
