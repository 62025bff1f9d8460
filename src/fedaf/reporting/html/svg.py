"""Charts as inline SVG: functions from numbers to the content of an ``svg`` element.

Colours come from classes of ``report.css``, so that a chart follows the theme of the page. All text is escaped.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

#: Steps of the colour scale of ``heat``, the classes ``h1`` to ``h8``; ``h0`` is nothing.
LEVELS = 8
_MOST_MARKS = 14  # rounds up to which every value has a mark
_MOST_LABELS = 45  # rows or columns of a matrix that are labelled
_MOST_NUMBERS = 160  # cells of a matrix up to which each shows its number
_LETTER = 6.1  # width of a letter


@dataclass(frozen=True)
class Drawing:
    """The content of an ``svg`` element and the size of its view box."""

    width: int
    height: int
    body: str


@dataclass(frozen=True)
class Series:
    """Values to draw in one colour.

    Args:
        label: Its name in the legend.
        css: The class that sets its colour.
        values: One sequence for each seed; ``None`` where a value is unknown. Parts of bars have none.
        dash: Dashes of the line; empty for a solid line.
        width: Width of the line.
    """

    label: str
    css: str
    values: Sequence[Sequence[float | None]]
    dash: str = ""
    width: float = 1.8

    @property
    def means(self) -> list[float | None]:
        """The mean over the seeds that know a value, by position."""
        return [_mean([seed[i] for seed in self.values if i < len(seed)]) for i in range(self.length)]

    @property
    def length(self) -> int:
        """Number of positions."""
        return max(map(len, self.values), default=0)


def lines(
    series: Sequence[Series],
    *,
    width: int = 380,
    height: int = 230,
    bounds: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
) -> Drawing:
    """Draw values by round: the mean over seeds, and a band from the lowest to the highest seed.

    Args:
        series: What to draw.
        width: Width of the chart.
        height: Height of the chart.
        bounds: Values that the axis does not go beyond.
        reference: A dotted horizontal line.
    """
    known = [value for one in series for seed in one.values for value in seed if value is not None]
    low, high = _range([*known, *([] if reference is None else [reference])], bounds)
    ticks = nice_ticks(low, high)
    left, right, top, bottom = 12 + _LETTER * max(len(_number(tick)) for tick in ticks), 12, 10, 34
    rounds = max(one.length for one in series)

    def x(index: int) -> float:
        return left + (width - left - right) * (index / (rounds - 1) if rounds > 1 else 0.5)

    def y(value: float) -> float:
        return top + (height - top - bottom) * (1 - (value - low) / (high - low))

    parts = [_gridline(left, width - right, y(tick), _number(tick)) for tick in ticks]
    for index in _spread_over(rounds, 8 if width < 500 else 14):
        parts.append(_text(x(index), height - bottom + 16, str(index + 1), "middle"))
    parts.append(_text((left + width - right) / 2, height - 3, "round", "middle"))
    if reference is not None:
        parts.append(f'<path class="reference" d="M{_n(left)} {_n(y(reference))}H{_n(width - right)}"/>')
    bands = [_band(one, x, y) for one in series if len(one.values) > 1]
    drawn = [_line(one, x, y, marks=rounds <= _MOST_MARKS) for one in series]
    return Drawing(width, height, "".join([*parts, *bands, *drawn]))


def dots(
    rows: Sequence[str],
    series: Sequence[Series],
    *,
    width: int = 500,
    bounds: tuple[float | None, float | None] = (None, None),
) -> Drawing:
    """Draw a row for each name with a dot for each series: its mean, and a line from the lowest to the highest seed.

    Args:
        rows: Names of the rows.
        series: What to draw; its positions are the rows.
        width: Width of the chart.
        bounds: Values that the axis does not go beyond.
    """
    step = max(22 if len(rows) <= 24 else 16, 5 * len(series) + 6)
    known = [value for one in series for seed in one.values for value in seed if value is not None]
    low, high = _range(known, bounds)
    left = 14 + _LETTER * min(18, max(len(name) for name in rows))
    right, top, height = 22, 8, 8 + step * len(rows) + 28

    def x(value: float) -> float:
        return left + (width - left - right) * (value - low) / (high - low)

    parts = []
    for tick in nice_ticks(low, high, 5):
        parts.append(f'<path class="tick" d="M{_n(x(tick))} {top}V{height - 24}"/>')
        parts.append(_text(x(tick), height - 8, _number(tick), "middle"))
    for index, name in enumerate(rows):
        middle = top + step * (index + 0.5)
        parts.append(_text(left - 8, middle + 4, _short(name, 18), "end"))
        parts.append(f'<path class="row" d="M{_n(left)} {_n(middle)}H{width - right}"/>')
        for number, one in enumerate(series):
            offset = (number - (len(series) - 1) / 2) * min(5.0, (step - 6) / max(1, len(series)))
            parts.append(_dot(one, index, x, middle + offset))
    return Drawing(width, height, "".join(parts))


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    level: Callable[[int, float], float],
    width: int = 560,
    largest_cell: int = 34,
) -> Drawing:
    """Draw a matrix, with a colour for each cell and, if there are few, its number.

    Args:
        rows: Names of the rows.
        columns: Names of the columns.
        values: The cells by row.
        level: Returns how strong the colour of a cell is, from 0 to 1, from its row and value.
        width: Largest width of the chart.
        largest_cell: Largest side of a cell.
    """
    named, headed = len(rows) <= _MOST_LABELS, len(columns) <= _MOST_LABELS
    left = 12 + _LETTER * min(14, max(map(len, rows))) if named else 8
    cell = min(largest_cell, (width - left - 8) / len(columns))
    upright = max(map(len, columns)) * _LETTER <= cell
    above = (20 if upright else 12 + 4.6 * min(14, max(map(len, columns)))) if headed else 6
    tall = min(cell, 26.0) if len(rows) <= 60 else min(cell, 8.0, max(1.5, 1600 / len(rows)))
    parts, gap = [], (1 if cell > 6 else 0)
    paths: dict[int, list[str]] = {}
    numbers = len(rows) * len(columns) <= _MOST_NUMBERS and cell >= 20
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            shade = _level(level(i, value))
            if shade:
                x, y = left + j * cell, above + i * tall
                paths.setdefault(shade, []).append(
                    f"M{_n(x)} {_n(y)}h{_n(cell - gap)}v{_n(tall - gap)}h-{_n(cell - gap)}z"
                )
            if numbers and value:
                css = "on-dark" if shade > LEVELS // 2 else "on-light"
                middle = left + (j + 0.5) * cell, above + (i + 0.5) * tall + 3.5
                parts.append(_text(*middle, _number(value), "middle", css))
    whole = _n(cell * len(columns) - gap), _n(tall * len(rows) - gap)
    back = f'<path class="h0" d="M{_n(left)} {_n(above)}h{whole[0]}v{whole[1]}h-{whole[0]}z"/>'
    cells = [f'<path class="h{shade}" d="{"".join(paths[shade])}"/>' for shade in sorted(paths)]
    names = [_text(left - 6, above + (i + 0.5) * tall + 4, _short(name, 14), "end") for i, name in enumerate(rows)]
    heads = []
    for j, name in enumerate(columns if headed else ()):
        x = left + (j + 0.5) * cell
        if upright:
            heads.append(_text(x, above - 6, name, "middle"))
        else:
            heads.append(_text(x + 3, above - 4, _short(name, 14), "start", turned=True))
    slant = 0 if upright or not headed else 4.6 * min(14, max(map(len, columns)))
    size = math.ceil(left + cell * len(columns) + max(8.0, slant)), math.ceil(above + tall * len(rows) + 6)
    return Drawing(*size, "".join([back, *cells, *parts, *(names if named else []), *heads]))


def bars(
    rows: Sequence[str],
    parts: Sequence[Sequence[float]],
    *,
    width: int = 500,
    format: Callable[[float], str],
) -> Drawing:
    """Draw a horizontal bar for each row, stacked from its parts, with the total after it.

    Args:
        rows: Names of the rows.
        parts: The parts of each row; the classes ``p0``, ``p1`` and so on set their colours.
        width: Width of the chart.
        format: Formats a total.
    """
    step, left, right = 28, 14 + _LETTER * min(20, max(map(len, rows))), 80
    most = max((sum(row) for row in parts), default=0) or 1.0
    found = []
    for index, (name, row) in enumerate(zip(rows, parts, strict=True)):
        y, x = 6 + index * step, left
        found.append(_text(left - 8, y + 15, _short(name, 20), "end"))
        for number, part in enumerate(row):
            wide = (width - left - right) * part / most
            if wide > 0:
                found.append(
                    f'<rect class="p{number % 8}" x="{_n(x)}" y="{y}" width="{_n(wide)}" height="{step - 8}"/>'
                )
            x += wide
        found.append(_text(x + 6, y + 15, format(sum(row)), "start", "strong"))
    return Drawing(width, 12 + step * len(rows), "".join(found))


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers between two values, at most ``most`` of them."""
    rough = (high - low) / max(1, most - 1)
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(magnitude * factor for factor in (1, 2, 2.5, 5, 10) if magnitude * factor >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _range(values: Sequence[float], bounds: tuple[float | None, float | None]) -> tuple[float, float]:
    """Return the ends of an axis: those of the values and a margin, within the bounds."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.5
    least, most = bounds
    low = low - margin if least is None else max(least, low - margin)
    high = high + margin if most is None else min(most, high + margin)
    return (low, high) if high > low else (low - margin, high + margin)


def _line(series: Series, x: Callable[[int], float], y: Callable[[float], float], *, marks: bool) -> str:
    dash = f' stroke-dasharray="{series.dash}"' if series.dash else ""
    points = [(x(index), y(value)) if value is not None else None for index, value in enumerate(series.means)]
    drawn = f'<path class="line" d="{_path(points)}" stroke-width="{series.width:g}"{dash}/>'
    circles = "".join(f'<circle cx="{_n(p[0])}" cy="{_n(p[1])}" r="2.6"/>' for p in points if p and marks)
    alone = "" if marks else _alone(points)
    return f'<g class="{series.css}">{drawn}{circles}{alone}</g>'


def _alone(points: Sequence[tuple[float, float] | None]) -> str:
    """Mark the points without a neighbour, which a line does not show."""
    padded = [None, *points, None]
    return "".join(
        f'<circle cx="{_n(point[0])}" cy="{_n(point[1])}" r="2.6"/>'
        for before, point, after in zip(padded, points, padded[2:], strict=False)
        if point and not before and not after
    )


def _band(series: Series, x: Callable[[int], float], y: Callable[[float], float]) -> str:
    """The area from the lowest to the highest seed, interrupted where a value is unknown."""
    pieces: list[list[tuple[int, float, float]]] = [[]]
    for index in range(series.length):
        found = [seed[index] for seed in series.values if index < len(seed)]
        known = [value for value in found if value is not None]
        if len(known) == len(found):
            pieces[-1].append((index, min(known), max(known)))
        else:
            pieces.append([])
    path = ""
    for piece in pieces:
        if len(piece) > 1:
            upper = [(x(index), y(high)) for index, _, high in piece]
            lower = [(x(index), y(low)) for index, low, _ in reversed(piece)]
            path += _path([*upper, *lower]) + "z"
    return f'<path class="band {series.css}" d="{path}"/>' if path else ""


def _dot(series: Series, index: int, x: Callable[[float], float], y: float) -> str:
    known = [value for seed in series.values if index < len(seed) and (value := seed[index]) is not None]
    if not known:
        return ""
    line = f'<path class="line" d="M{_n(x(min(known)))} {_n(y)}H{_n(x(max(known)))}"/>' if len(known) > 1 else ""
    return f'<g class="{series.css}">{line}<circle cx="{_n(x(sum(known) / len(known)))}" cy="{_n(y)}" r="4"/></g>'


def _path(points: Sequence[tuple[float, float] | None]) -> str:
    found, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        found.append(f"{pen}{_n(point[0])} {_n(point[1])}")
        pen = "L"
    return "".join(found)


def _gridline(left: float, right: float, y: float, label: str) -> str:
    return f'<path class="tick" d="M{_n(left)} {_n(y)}H{_n(right)}"/>' + _text(left - 6, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str, css: str = "", *, turned: bool = False) -> str:
    kind = f' class="{css}"' if css else ""
    turn = f' transform="rotate(-50 {_n(x)} {_n(y)})"' if turned else ""
    place = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{_n(x)}" y="{_n(y)}"{place}{kind}{turn}>{escape(text)}</text>'


def _spread_over(count: int, most: int) -> list[int]:
    """Return indices below ``count``, at most ``most`` of them: rounds 1, 5, 10 and so on, or every one."""
    if count <= most:
        return list(range(count))
    step = next(step for step in (2, 5, 10, 20, 25, 50, 100, 250, 1000, 10**4, 10**6) if count / step < most)
    return [0, *range(step - 1, count, step)]


def _level(strength: float) -> int:
    """Return the step of the colour scale; any strength above 0 is visible."""
    return 0 if strength <= 0 else max(1, min(LEVELS, math.ceil(strength * LEVELS)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


def _number(value: float) -> str:
    """Format a number of an axis or a cell."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}") if abs(value) >= 10_000 else f"{value:.4g}"


def _n(value: float) -> str:
    """Format a coordinate."""
    return f"{value:.1f}".removesuffix(".0")
