"""The generated parts of the reference: every command and option, every setting, as Markdown."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import typer

from fedaf import config as configuration
from fedaf.cli.main import app
from fedaf.common.options import Options
from fedaf.config.configuration import Config
from fedaf.config.tables import TABLES
from fedaf.methods.registry import METHODS


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command with its full name, groups before their commands."""

    def walk(name: str, command: click.Command, parent: click.Context | None) -> Iterator:
        context = click.Context(command, info_name=name, parent=parent)
        yield context.command_path, command, context
        if isinstance(command, click.Group):
            for child in command.list_commands(context):
                yield from walk(child, command.get_command(context, child), context)

    yield from walk("fedaf", typer.main.get_command(app), None)


def cli() -> str:
    """The reference of the command line."""
    parts = []
    for path, command, context in commands():
        parts += [f"## {path}", _prose(command.help or command.short_help or "")]
        if isinstance(command, click.Group):
            rows = [(f"`{path} {name}`", _first(command.get_command(context, name))) for name in command.commands]
            parts.append(_table(("Command", "What it does"), rows))
        usage = " ".join([path, *command.collect_usage_pieces(context)])
        parts.append(f"```text\n{usage}\n```")
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
        if arguments:
            parts.append(_table(("Argument", "Meaning"), [(f"`{_metavar(p)}`", _prose(p.help)) for p in arguments]))
        if options:
            parts.append(_table(("Option", "Meaning"), [(_names(p), _prose(p.help)) for p in options]))
    return "\n\n".join(filter(None, parts)) + "\n"


def settings() -> str:
    """The reference of the settings: every table, then the options of every method."""
    config = configuration.build({})
    parts = []
    for table, model in TABLES.items():
        if table != "method":
            parts += [f"## [{table}]", _sentence(model), _settings_table(config, table)]
    for name in METHODS:
        config = configuration.build({"method": {"name": name}})
        parts += [f"## [method] of {name}", f'`method.name = "{name}"`', _settings_table(config, "method")]
    return "\n\n".join(parts) + "\n"


def write(folder: Path) -> None:
    """Write every part to a folder; a file that would not change is not touched."""
    folder.mkdir(exist_ok=True)
    for name, text in (("cli.md", cli()), ("settings.md", settings())):
        path = folder / name
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)


def _settings_table(config: Config, table: str) -> str:
    rows = [row for row in configuration.describe(config) if row[0].startswith(f"{table}.")]
    shown = [(f"`{path}`", f"`{value}`" if value else "unset", _prose(meaning)) for path, value, meaning in rows]
    return _table(("Setting", "Default on digits", "Meaning"), shown)


def _sentence(table: type[Options]) -> str:
    """What a table is for, from its docstring."""
    text = (table.__doc__ or "").partition("\n")[0]
    what = text.partition(" table: ")[2] or text
    return _prose(what[0].upper() + what[1:].replace("``", ""))


def _first(command: click.Command | None) -> str:
    return _prose((command.help or "").partition("\n")[0]) if command else ""


def _metavar(argument: click.Argument) -> str:
    return argument.human_readable_name


def _names(option: click.Option) -> str:
    value = "" if option.is_flag else option.metavar or option.name.replace("_", "-").upper()
    if isinstance(option.type, click.Choice):
        value = "|".join(option.type.choices)
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    return f"{names} `{value}`" if value else names


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _prose(text: str | None) -> str:
    """Help text as Markdown: rich's bold is a command, and what Markdown would interpret is escaped."""
    plain = " ".join((text or "").replace("\b", "").split())
    pieces = re.split(r"\[bold\](.*?)\[/\]", plain)
    for number in range(0, len(pieces), 2):
        escaped = re.sub(r"([*_<>\[\]`])", r"\\\1", pieces[number].replace("\\[", "["))
        pieces[number] = re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", escaped)
    return "".join(f"`{piece}`" if number % 2 else piece for number, piece in enumerate(pieces))
