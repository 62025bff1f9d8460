"""What the README and the pages under docs/ show is what works."""

import re
import shlex
import sys
import tomllib
from functools import cache, partial
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

import fedaf
from fedaf.cli.main import app
from fedaf.methods.registry import METHODS
from support import ROOT

PAGES = {path.name: path.read_text() for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])}
WRITTEN = {name: text for name, text in PAGES.items() if name != "RESULTS.md"}  # that one is generated
TABLES = ("run", "data", "partition", "model", "federation", "training", "method")


def blocks(text: str, language: str) -> list[str]:
    """The content of all fenced blocks of a language; commands have none."""
    return [code for of, code in re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text) if of == language]


def inline(text: str) -> list[str]:
    """Everything in single backticks."""
    return [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))]


def pages_with(language: str) -> list[str]:
    return [name for name, text in WRITTEN.items() if blocks(text, language)]


def commands(text: str) -> list[str]:
    """Every ``fedaf ...`` in a block of commands or in backticks; ``[a|b]`` and such are descriptions, not commands."""
    lines = [line for block in blocks(text, "") for line in block.splitlines()]
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
    assert len(readme.split()) <= 1000
    for needed in ("make demo", "make test", "Python 3.11", "docs/demo.png"):
        assert needed in readme


def test_numbers_in_the_readme_are_those_of_the_results():
    rows = [row for row in PAGES["README.md"].splitlines() if row.startswith("| Fed")]
    numbers = re.findall(r"\d+\.\d\d", "\n".join(rows))
    assert len(numbers) == 39
    assert [number for number in numbers if number not in PAGES["RESULTS.md"]] == []


def test_every_dependency_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    names = [re.match(r"[\w-]+", line)[0] for line in [*project["dependencies"], *(line for e in extras for line in e)]]
    table = PAGES["guide.md"].partition("## Dependencies")[2]
    assert [name for name in names if not re.search(rf"^\|[^|]*\b{name}\b", table, re.MULTILINE)] == []


@pytest.mark.parametrize("page", WRITTEN)
def test_make_targets_exist(page):
    makefile, lines = (ROOT / "Makefile").read_text(), "\n".join([*blocks(WRITTEN[page], ""), *inline(WRITTEN[page])])
    for target in re.findall(r"^make ([a-z-]+)", lines, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


@pytest.mark.parametrize("page", PAGES)
def test_links_and_images_exist(page):
    folder = ROOT if (ROOT / page).is_file() else ROOT / "docs"
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        linked = (folder / path).resolve() if path else folder / page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked.read_text()), target


def test_there_are_commands_to_check():
    assert sum(len(commands(text)) for text in WRITTEN.values()) >= 40


@pytest.mark.parametrize("page", [name for name, text in WRITTEN.items() if commands(text)])
def test_commands_parse(page):
    for command in commands(WRITTEN[page]):
        try:
            parse(command)
        except (click.MissingParameter, click.BadOptionUsage):  # text may mention a command or flag without its value
            assert command in inline(WRITTEN[page]), command
        except click.ClickException as error:
            pytest.fail(f"{command}: {error.format_message()}")


def test_the_check_of_commands_finds_mistakes():
    for wrong in ("fedaf runn", "fedaf run --no-such-flag 1", "fedaf run --alpha x", "fedaf data fetchh cifar10"):
        with pytest.raises(click.ClickException):
            parse(wrong)


@pytest.mark.parametrize("page", WRITTEN)
def test_settings_exist(page):
    shown, known = r"(?<![\w./])({})\.([a-z_]+)(?![\w(/])".format("|".join(TABLES)), settings()
    for table, key in re.findall(shown, "\n".join([*blocks(WRITTEN[page], ""), *inline(WRITTEN[page])])):
        file = key in ("toml", "md", "log", "json")  # such as run.toml
        if not file and (table, key) not in {("method", "name"), ("method", "scale")}:  # the second is an example's
            assert f" {table}.{key} " in known, f"{table}.{key}"


@pytest.mark.parametrize("page", pages_with("toml"))
def test_toml_is_valid(page):
    for block in blocks(WRITTEN[page], "toml"):
        tomllib.loads(block)


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_runs(page, tmp_path, monkeypatch):
    """Blocks run in order, in an empty folder, with fewer clients and rounds than shown. A block that begins with the
    name of a file is saved there."""

    def small(**given):
        if given.get("method", "fedaf") == "fedaf":
            given = {"server_epochs": 1, **given, "local_steps": 2, "ipc": 5}
        split = {} if "partition.kind" in given.get("settings", {}) else {"alpha": 0.5}
        settings = {"model.width": 8, **given.get("settings", {})}
        return {**split, **given, "settings": settings, "preset": "quick", "clients": 3, "rounds": 2}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for function in (fedaf.run, fedaf.start, fedaf.compare):
        smaller = partial(lambda function, **given: function(**small(**given)), function)
        monkeypatch.setattr(fedaf, function.__name__, smaller, raising=False)
    before = set(sys.modules)
    for block in blocks(WRITTEN[page], "python"):
        if file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block)
            continue
        names: dict[str, object] = {}
        exec(compile(block, page, "exec"), names)
        if isinstance(result := names.get("result"), fedaf.RunResult):
            assert len(result.curve) == 2
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_the_method_on_the_page_is_short_and_sends_what_it_says(tmp_path, monkeypatch):
    code = next(block for block in blocks(PAGES["extending.md"], "python") if "class Means" in block)
    assert len(code.splitlines()) < 40
    (tmp_path / "means_of_page.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    result = fedaf.run(method="means_of_page:Means", rounds=2, clients=3, alpha=0.5, scale=0.5)
    assert len(result.curve) == 2
    assert result.figures["upload_bytes_per_client_round"] == 4 * 8 * 8
