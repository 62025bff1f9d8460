"""Tables that fit the width of a terminal: no cell is cut, no word broken and no column dropped."""

import textwrap
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text, TextType

_NO_BREAK = "\N{NO-BREAK SPACE}"


def fitted(table: Table, width: int) -> list[Table]:
    """Return a table in a form that fits a width.

    A table that is too wide gets narrower headers and no vertical lines. If that is not enough, its columns are divided
    among several tables, each with the first column.

    Args:
        table: A table whose cells are text that is not wrapped.
        width: Characters of a line.
    """
    if _width(table) <= width:
        return [table]
    for space in (1, 0):
        whole = _narrow(table, table.columns[1:], table.title, space)
        if _width(whole) <= width:
            return [whole]
    parts: list[list[Column]] = [[]]
    for column in table.columns[1:]:
        if parts[-1] and _width(_narrow(table, [*parts[-1], column])) > width:
            parts.append([])
        parts[-1].append(column)
    titles = [table.title, *(None for _ in parts[1:])]
    return [_narrow(table, columns, title) for columns, title in zip(parts, titles, strict=True)]


def _width(table: Table) -> int:
    console = Console(width=10_000, emoji=False)
    return Measurement.get(console, console.options, table).maximum


def _narrow(table: Table, columns: Sequence[Column], title: TextType | None = None, space: int = 1) -> Table:
    """The first column and some others, with headers wrapped to the width of their cells."""
    shown = [table.columns[0], *columns]
    made = Table(
        title=title, title_justify="left", box=SIMPLE, padding=(0, space, 0, 0), show_edge=False, pad_edge=False
    )
    for column in shown:
        header = _wrapped(str(column.header), [str(cell) for cell in column.cells])
        made.add_column(header, justify=column.justify, no_wrap=True, overflow="fold")
    for row in zip(*(column.cells for column in shown), strict=True):
        made.add_row(*row)
    return made


def _wrapped(header: str, cells: Sequence[str]) -> str:
    """A header on as many lines as its cells are narrow, broken at spaces only and not before its unit."""
    joined = header.replace(" %", f"{_NO_BREAK}%")
    room = max(cell_len(Text.from_markup(text).plain) for text in (*cells, *joined.split(" ")))
    lines = textwrap.wrap(joined, room, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_NO_BREAK, " ")
