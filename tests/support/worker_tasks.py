"""Tasks for worker processes, which must be able to import them."""

import os
import signal
import time
from pathlib import Path

from fedaf.errors import UserError


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def work(task: str, say) -> str:
    """What a task names: words before a colon act, the rest is returned."""
    action, _, value = task.partition(":")
    say(f"begins {value}")
    if action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if action == "refuse":
        raise UserError("no", code="FEDAF-TEST")
    if action == "odd":
        raise Unpicklable("a", "b")
    if action == "meet":  # returns only if another task runs at the same time
        Path(value).mkdir(exist_ok=True)
        mine = Path(value) / str(os.getpid())
        mine.touch()
        deadline = time.monotonic() + 60
        while len(list(Path(value).iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    if action == "wait":
        Path(value, str(os.getpid())).touch()
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            Path(value, "checkpointed").touch()
            raise
    return f"{action} {value}"
