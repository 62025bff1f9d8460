"""The page of the examples names every example, and the files that it links to exist."""

import re

from support import ROOT
from support.examples import EXAMPLES

PAGE = (EXAMPLES / "README.md").read_text()


def test_every_example_is_in_the_table():
    names = {path.name for path in EXAMPLES.iterdir() if not path.name.startswith(("__", "README", "runs", "."))}
    linked = {target.partition("/")[0] for target in re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", PAGE, re.MULTILINE)}
    assert linked == names
    assert all((EXAMPLES / target).exists() for target in re.findall(r"\]\(([^)]+)\)", PAGE))


def test_every_command_names_a_file_that_exists():
    commands = re.findall(r"`([^`]*examples/[^`]*)`", PAGE)
    assert len(commands) >= 7
    for command in commands:
        (path,) = re.findall(r"examples/[\w./]+", command)
        assert (ROOT / path).exists(), command
