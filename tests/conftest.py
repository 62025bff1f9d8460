"""What several tests need: small runs that finish in seconds."""

import pytest

#: A small federation on digits: seconds, not minutes, yet with every part of a real one.
SMALL = {
    "rounds": 3,
    "alpha": 0.1,
    "clients": 4,
    "settings": {"model.width": 16, "run.device": "cpu"},
}
SMALL_FEDAF = {"ipc": 5, "local_steps": 6, "real_batch": 16, "server_epochs": 4, "continue_images": True}


@pytest.fixture
def small():
    return {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}
