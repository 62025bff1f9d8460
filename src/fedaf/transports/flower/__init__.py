"""Clients on machines of their own, reached over Flower. Only this folder and ``fedaf.deploy.apps`` import flwr."""

from pathlib import Path

#: For the environment of every program of Flower: it contacts nobody but its own link, and installs nothing.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def app_directory() -> Path:
    """The Flower app to give to ``flwr run``."""
    return Path(__file__).parent / "app"
