"""Charts: their lines, gaps, bands and colours, and that no name becomes markup."""

import re

import pytest

from fedaf.methods.registry import METHODS
from fedaf.reporting.html import svg
from fedaf.reporting.html.palette import contrast, styles_of
from fedaf.reporting.html.svg import Series


def paths(drawing: svg.Drawing, kind: str) -> list[str]:
    return re.findall(rf'<path class="{kind}[^"]*" d="([^"]*)"', drawing.body)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 100, [0, 20, 40, 60, 80, 100]), (97.2, 99.1, [97.5, 98, 98.5, 99]), (0, 0.003, [0, 0.001, 0.002, 0.003])],
)
def test_ticks_are_round_numbers_within_the_axis(low, high, ticks):
    assert svg.nice_ticks(low, high) == pytest.approx(ticks)


def test_a_line_passes_through_the_means_and_a_band_through_the_extremes():
    drawn = svg.lines([Series("a", "m0", [[0.0, 20.0], [40.0, 80.0]])], bounds=(0, 100))
    (line,) = paths(drawn, "line")
    (x1, y1), (x2, y2) = (tuple(map(float, point.split())) for point in line[1:].split("L"))
    assert x1 < x2
    assert y2 < y1  # 50 is above 20
    (band,) = paths(drawn, "band")
    ys = [float(point.split()[1]) for point in band.rstrip("z")[1:].split("L")]
    upper_first, upper_last, lower_last, lower_first = ys
    assert y1 == pytest.approx((upper_first + lower_first) / 2, abs=0.1)
    assert y2 == pytest.approx((upper_last + lower_last) / 2, abs=0.1)


def test_an_unknown_value_is_a_gap():
    (line,) = paths(svg.lines([Series("a", "m0", [[1.0, 2.0, None, 3.0, 4.0]])]), "line")
    assert line.count("M") == 2
    (whole,) = paths(svg.lines([Series("a", "m0", [[1.0, 2.0, 2.5, 3.0, 4.0]])]), "line")
    assert whole.count("M") == 1


def test_a_stronger_cell_has_a_darker_step_and_nothing_has_none():
    drawn = svg.heat(["r"], ["a", "b", "c"], [[0, 1, 8]], level=lambda _, value: value / 8)
    assert len(paths(drawn, "h8")) == len(paths(drawn, "h1")) == 1
    assert not paths(drawn, "h4")


@pytest.mark.parametrize(
    "drawing",
    [
        svg.dots(["<b>&"], [Series("x", "m0", [[1.0]])]),
        svg.heat(["<b>&"], ["<i>"], [[1]], level=lambda _, value: 1.0),
        svg.bars(["<b>&"], [[1.0]], format=lambda value: "<u>"),
    ],
)
def test_names_are_escaped(drawing):
    assert "&lt;b&gt;&amp;" in drawing.body
    assert not re.search(r"<[biu]>", drawing.body)


def test_the_lines_of_all_methods_are_visible_on_both_pages_and_differ():
    styles = styles_of({name: name for name in METHODS})
    looks = {(style.light, style.dash) for style in styles.values()}
    assert len(looks) == len(styles)
    for style in styles.values():
        for colour, page in ((style.light, (255, 255, 255)), (style.dark, (24, 29, 38))):
            rgb = tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))
            assert contrast(rgb, page) >= 3, style


def test_variants_of_a_method_share_its_colour_and_differ_in_their_dashes():
    styles = styles_of({"fedaf (ipc 5)": "fedaf", "fedaf (ipc 10)": "fedaf", "fedavg": "fedavg"})
    five, ten, other = styles.values()
    assert five.light == ten.light != other.light
    assert five.dash != ten.dash
