"""``fedaf settings``: list every setting."""

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedaf import config as configuration
from fedaf.cli.options import Flags, Preset, with_flags


@with_flags("dataset", "method")
def settings(*, flags: Flags, preset: Preset = None) -> None:
    """List every setting that --set and a TOML file accept, with its value for this data set and method."""
    config = configuration.build(configuration.from_flags(**flags), preset=preset)
    table = Table(Column("setting", no_wrap=True), Column("value", overflow="fold"), "meaning", box=SIMPLE)
    for row in configuration.describe(config):
        table.add_row(*map(escape, row))
    Console(emoji=False).print(table)
