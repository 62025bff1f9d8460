"""Colours of the report: those of the figures, adapted to a light and a dark page."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

from fedaf.reporting.colours import COLOURS, OTHER_COLOURS, REFERENCES, THICK

_LIGHT, _DARK = (255, 255, 255), (24, 29, 38)  # the cards of report.css
_CONTRAST = 3.2  # of lines and marks against the page; WCAG asks for 3
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
_MATPLOTLIB_DASHES = {"-": "", "--": "7 3", "-.": "9 3 2 3"}

_Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Style:
    """The look of a variant.

    Args:
        css: Its class in the style sheet, which sets the colour ``--c``.
        light: The colour on a light page.
        dark: The colour on a dark page.
        dash: Dashes of its lines; empty for a solid line.
        width: Width of its lines.
    """

    css: str
    light: str
    dark: str
    dash: str = ""
    width: float = 1.8


def styles_of(methods: Mapping[str, str]) -> dict[str, Style]:
    """Return the style of each label, by the method of the label. Later labels of a method are dashed.

    Args:
        methods: The method of each label.
    """
    others, dashes, found = cycle(OTHER_COLOURS), dict[str, Iterator[str]](), {}
    unknown: dict[str, str] = {}
    for number, (label, method) in enumerate(methods.items()):
        name, line = REFERENCES.get(method) or (COLOURS.get(method) or unknown.setdefault(method, ""), "-")
        if not name:
            name = unknown[method] = next(others)
        first = _MATPLOTLIB_DASHES[line]
        rest = dashes.setdefault(name, cycle([first, *(dash for dash in _DASHES if dash != first)]))
        light, dark = _on_page(_parsed(name), _LIGHT), _on_page(_inverted_grey(_parsed(name)), _DARK)
        width = max(1.8, THICK.get(method, 0))
        found[label] = Style(f"m{number}", _hex(light), _hex(dark), next(rest), width)
    return found


def _parsed(name: str) -> _Colour:
    from matplotlib.colors import to_rgb

    red, green, blue = (round(255 * part) for part in to_rgb(name))
    return red, green, blue


def _hex(colour: _Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def _inverted_grey(colour: _Colour) -> _Colour:
    """Return a colour; a grey one inverted, so that black lines become white on a dark page."""
    red, green, blue = colour
    return (255 - red, 255 - green, 255 - blue) if red == green == blue else colour


def _on_page(colour: _Colour, page: _Colour) -> _Colour:
    """Return the colour, mixed with black or white until it is visible on the page."""
    towards = 0 if sum(page) > 382 else 255
    mixed = colour
    for step in range(1, 20):
        if contrast(mixed, page) >= _CONTRAST:
            break
        share = step / 20
        red, green, blue = (round(part + share * (towards - part)) for part in colour)
        mixed = red, green, blue
    return mixed


def contrast(one: _Colour, other: _Colour) -> float:
    """Return the contrast ratio of two colours, as WCAG defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: _Colour) -> float:
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
