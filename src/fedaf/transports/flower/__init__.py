"""Clients on their own machines, reached over Flower. Only this folder and ``fedaf.deploy.apps`` import flwr."""

from pathlib import Path

#: Environment of every Flower program: no telemetry, no update check, no installation of packages.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def app_directory() -> Path:
    """Return the folder of the Flower app, for ``flwr run``."""
    return Path(__file__).parent / "app"
