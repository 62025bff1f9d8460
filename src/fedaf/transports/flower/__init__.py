"""Clients on machines of their own, reached over Flower. Only this folder and ``fedaf.flower`` import flwr."""

from pathlib import Path


def app_directory() -> Path:
    """The Flower app to give to ``flwr run``."""
    return Path(__file__).parent / "app"
