"""The generated reference has every command, option and setting."""

import importlib.util

import click
import pytest

from fedaf.config.tables import TABLES
from fedaf.methods.registry import METHODS
from support.pages import DOCS

_SPEC = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
generate = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generate)

CLI = generate.cli()
SETTINGS = generate.settings()


def section(text: str, title: str) -> str:
    """The part of a page below a heading of the second level."""
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("path", "command"), [(path, command) for path, command, _ in generate.commands()])
def test_every_option_and_argument_of_a_command_appears_with_its_meaning(path, command):
    shown = section(CLI, path)
    assert shown, path
    for parameter in command.params:
        names = parameter.opts if isinstance(parameter, click.Option) else [parameter.human_readable_name]
        for name in names:
            (row,) = [row for row in shown.splitlines() if row.startswith("| ") and f"`{name}`" in row.split(" | ")[0]]
            assert row.split(" | ")[1].strip(" |"), f"{path} {name} has no meaning"


@pytest.mark.parametrize("table", [table for table in TABLES if table != "method"])
def test_every_setting_of_a_table_appears(table):
    shown = section(SETTINGS, f"[{table}]")
    assert [key for key in TABLES[table].model_fields if f"`{table}.{key}`" not in shown] == []


@pytest.mark.parametrize("name", list(METHODS))
def test_every_option_of_a_method_appears(name):
    shown, options = section(SETTINGS, f"[method] of {name}"), METHODS.find(name).Options
    assert [key for key in options.model_fields if f"| `method.{key}` |" not in shown] == []


def test_every_row_of_settings_has_a_meaning():
    rows = [row.split(" | ") for row in SETTINGS.splitlines() if row.startswith("| `")]
    assert len(rows) > 200
    assert [row for row in rows if len(row) != 3 or not row[2].strip(" |")] == []


def test_every_table_says_what_it_is_for():
    assert [
        table for table in TABLES if table != "method" and not section(SETTINGS, f"[{table}]").strip()[0].isalpha()
    ] == []
