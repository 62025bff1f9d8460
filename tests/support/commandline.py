"""Calling the command line from tests."""

import os
import re
import subprocess
import sys

SMALL = ["--dataset", "digits", "--preset", "quick", "--rounds", "1", "--set", "model.width=8", "--device", "cpu"]
TINY = [*SMALL, "--local-steps", "2", "--ipc", "5", "--set", "method.server_epochs=2", "--set", "run.threads=1"]
TINY += ["--set", "method.server_steps=4"]

COLOURS = ("FORCE_COLOR", "TTY_COMPATIBLE", "PY_COLORS", "GITHUB_ACTIONS")  # each makes a file pass for a terminal


def command(*args: object, **options) -> subprocess.CompletedProcess[str]:
    """Run the command in a new process, without a terminal."""
    env = {name: value for name, value in os.environ.items() if name not in COLOURS}
    line = [sys.executable, "-m", "fedaf", *map(str, args)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=env, timeout=120, **options)


def assert_one_sentence(code: int, err: str, words: list[str]) -> None:
    """Assert that a command ended with one sentence on one line, with these words and an error code."""
    assert code == 2, err
    assert "Traceback" not in err
    assert re.fullmatch(r"fedaf: [^\n]+ \[FEDAF(-[A-Z0-9]+)+\]\n", err), err
    assert all(word in err for word in words), err
