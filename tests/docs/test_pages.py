"""What the README and the pages under docs/ say is true: commands parse, settings and links exist."""

import re
import shlex
import sys
import tomllib
from functools import cache
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

import fedaf
from fedaf.cli.main import app
from fedaf.methods.registry import METHODS
from support import ROOT
from support.pages import GENERATED, blocks, pages

PAGES = {name: path.read_text() for name, path in pages().items()}
WRITTEN = {name: text for name, text in PAGES.items() if ROOT / name != GENERATED}
TABLES = ("run", "data", "partition", "model", "federation", "training", "privacy", "method")
EXAMPLES = {("method", "name"), ("method", "scale"), ("method", "server_momentum")}  # the last two are of examples


def code(text: str, language: str) -> list[str]:
    """The content of all fenced blocks of a language."""
    return [block.code for block in blocks(text) if block.language == language]


def inline(text: str) -> list[str]:
    """Everything in single backticks."""
    return [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))]


def commands(text: str) -> list[str]:
    """Every ``fedaf ...`` in a block of commands or in backticks; ``[a|b]`` and such are descriptions, not commands."""
    lines = [line for block in code(text, "bash") for line in block.splitlines()]
    return [
        line
        for line in [*lines, *inline(text)]
        if line.startswith("fedaf ") and not re.search(r"\[[a-z]+\||\.\.\.|COMMAND", line)
    ]


def parse(command: str) -> None:
    """Let the command line parse a command, without running it."""
    words = shlex.split(command.partition(" > ")[0], comments=True)[1:]
    context = click.Context(typer.main.get_command(app))
    while isinstance(context.command, click.Group) and words and not words[0].startswith("-"):
        name, child, words = context.command.resolve_command(context, words)
        context = child.make_context(name, words) if not isinstance(child, click.Group) else click.Context(child)


@cache
def settings() -> str:
    """Every setting of every method, as ``fedaf settings`` lists them."""
    shown = [CliRunner().invoke(app, ["settings", "--method", name], env={"COLUMNS": "200"}).stdout for name in METHODS]
    return "\n".join(shown)


def anchors(text: str) -> set[str]:
    """The links to headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short_and_names_the_two_commands():
    readme = PAGES["README.md"]
    assert len(readme.split()) < 700
    for needed in ("make demo", "make test", "Python 3.11", "docs/demo.png"):
        assert needed in readme


@pytest.mark.parametrize("page", ["README.md", "docs/explanation/paper-order.md"])
def test_measured_numbers_are_those_of_the_results(page):
    rows = [row for row in PAGES[page].splitlines() if row.startswith("| Fed")]
    numbers = re.findall(r"\d+\.\d\d", "\n".join(rows))
    assert len(numbers) >= 18
    assert [number for number in numbers if number not in PAGES["docs/RESULTS.md"]] == []


def test_every_dependency_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    names = [re.match(r"[\w-]+", line)[0] for line in [*project["dependencies"], *(line for e in extras for line in e)]]
    table = PAGES["docs/reference/dependencies.md"]
    assert [name for name in names if not re.search(rf"^\|[^|]*\b{name}\b", table, re.MULTILINE)] == []


def test_there_are_commands_to_check():
    assert sum(len(commands(text)) for text in WRITTEN.values()) >= 100


@pytest.mark.parametrize("page", [name for name, text in WRITTEN.items() if commands(text)])
def test_commands_parse(page):
    for command in commands(WRITTEN[page]):
        try:
            parse(re.sub(r" > \S+ 2>&1 &.*", "", command))
        except (click.MissingParameter, click.BadOptionUsage):  # text may mention a command or flag without its value
            assert command in inline(WRITTEN[page]), command
        except click.exceptions.Exit:  # --help
            continue
        except click.ClickException as error:
            pytest.fail(f"{command}: {error.format_message()}")


def test_the_check_of_commands_finds_mistakes():
    for wrong in ("fedaf runn", "fedaf run --no-such-flag 1", "fedaf run --alpha x", "fedaf data fetchh cifar10"):
        with pytest.raises(click.ClickException):
            parse(wrong)


@pytest.mark.parametrize("page", WRITTEN)
def test_settings_exist(page):
    shown, known = r"(?<![\w./])({})\.([a-z_]+)(?![\w(/])".format("|".join(TABLES)), settings()
    for table, key in re.findall(shown, "\n".join([*code(WRITTEN[page], "bash"), *inline(WRITTEN[page])])):
        file = key in ("toml", "md", "log", "json", "png")  # such as run.toml
        if not file and (table, key) not in EXAMPLES:
            assert f" {table}.{key} " in known, f"{table}.{key}"


def test_the_method_on_the_page_is_short_and_sends_what_it_says(tmp_path, monkeypatch):
    tutorial = PAGES["docs/tutorials/write-a-method.md"]
    method = next(block for block in code(tutorial, "python") if "class Means" in block)
    assert len(method.splitlines()) < 40
    Path(tmp_path / "means_of_page.py").write_text(method)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    result = fedaf.run(method="means_of_page:Means", rounds=2, clients=3, alpha=0.5, scale=0.5)
    assert len(result.curve) == 2
    assert result.figures["upload_bytes_per_client_round"] == 4 * 8 * 8
