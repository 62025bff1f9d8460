"""Tables and pictures of runs whose names are anything, and whose files may be damaged."""

import io
import json
import re
import warnings
from pathlib import Path

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from fedaf.methods.registry import METHODS, REFERENCES
from fedaf.reporting import figures
from fedaf.reporting.progress import LiveProgress, PlainProgress
from fedaf.reporting.tables import domains_table, partition_table, results_table
from support.errors import raises

ODD = ["folder:a$_$b", "folder:a[/b]c", "folder:a[bold]c", "folder:日本"]


def a_result(*, curve: tuple[float, ...] = (50.0,), **more) -> dict:
    facts = {"dataset": "d", "method": "m", "clients": 2, "alpha": None, "partition": "iid", "seed": 0, "seconds": 1.0}
    sizes = {"upload_bytes_per_client_round": 2048.0, "download_bytes_per_client_round": 10.0}
    ends = {"rounds": len(curve), "best_accuracy": max(curve), "last_accuracy": curve[-1], "curve": list(curve)}
    return {**facts, **sizes, **ends, **more}


def shown(table) -> str:
    out = io.StringIO()
    Console(file=out, width=200, emoji=False).print(table)
    return out.getvalue()


@pytest.fixture
def saved(monkeypatch) -> list[Figure]:
    """The figures that were drawn, in order."""
    drawn: list[Figure] = []
    draw = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (drawn.append(self), draw(self, path))[1])
    return drawn


def x_ticks(figure: Figure) -> list[str]:
    return [tick.get_text() for tick in figure.axes[0].get_xticklabels()]


@pytest.mark.parametrize("name", ODD)
def test_any_name_is_shown_as_it_is(tmp_path, name):
    own = {"best_accuracy": 1.0, "last_accuracy": 1.0, "best_by_client": {}}
    result = a_result(
        dataset=name, method=name, partition="domain", personal=own, best_accuracy_by_domain={name: 50.0, "b": 2.0}
    )
    lines = shown(results_table([result])).splitlines()
    assert lines[0].startswith(f"{name}, 2 clients")
    assert sum(f"{name} (personal)" in line for line in lines) == 1
    assert shown(domains_table([result])).count(name) == 3
    assert name in shown(partition_table({name: [1, 2]}))
    assert figures.curves([result], tmp_path / "curves.png").is_file()


def test_the_live_display_shows_any_name_as_it_is():
    out = io.StringIO()
    live = LiveProgress(Console(file=out, force_terminal=True, width=200, emoji=False))
    live.started(title="fedaf on folder:a[/b]c", rounds=1, first_round=1, phases=1, device="cpu")
    live.phase_started("train", 1)
    live.progressed("client[/x]", 1, 2)
    live.ended()
    assert "folder:a[/b]c" in out.getvalue()
    assert "client[/x]" in out.getvalue()


def test_a_run_whose_accuracy_nobody_could_measure_is_shown_without_it(tmp_path):
    nobody = {"curve": [None, None], "rounds": 2, "best_accuracy": None, "last_accuracy": None}
    result = {**a_result(dataset="none", partition="auto"), **nobody}
    table = shown(results_table([result]))
    assert "own data, 2 clients, 2 rounds, seed 0" in table
    assert table.count("unknown") == 2
    assert figures.curves([result], tmp_path / "curves.png").is_file()
    out = io.StringIO()
    for progress in (PlainProgress, LiveProgress):
        watching = progress(Console(file=out, force_terminal=True, width=200), verbose=True)
        watching.started(title="t", rounds=2, first_round=1, phases=1, device="cpu")
        watching.round_ended({"round": 1, "accuracy": None, "seconds": {"fit": 1.0}})
        watching.ended()
    assert out.getvalue().count("accuracy unknown") == 2


def test_one_of_a_kind_is_singular():
    assert "d, 1 client, iid, 1 round, seed 0" in shown(results_table([a_result(clients=1)]))
    assert "d, 2 clients, iid, 2 rounds, seed 0" in shown(results_table([a_result(curve=(1.0, 2.0))]))


def test_the_split_shows_each_class_as_long_as_they_fit():
    assert "classes held" not in shown(partition_table({"a": [1] * 12}))
    assert "classes held" in shown(partition_table({"a": [1] * 13}))


def test_a_curve_of_one_round_has_one_tick(tmp_path, saved):
    figures.curves([a_result()], tmp_path / "one.png")
    figures.curves([a_result(), a_result(method="other", curve=(1.0, 2.0, 3.0))], tmp_path / "three.png")
    assert list(saved[0].axes[0].get_xticks()) == [1]
    assert {1, 2, 3} <= set(saved[1].axes[0].get_xticks())


def test_a_letter_that_the_font_lacks_is_no_warning(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figures.curves([a_result(dataset="日本")], tmp_path / "curves.png")
    assert caught == []


def write_split(run: Path, names: list[str]) -> None:
    (run / "partition.json").write_text(json.dumps({"counts": {name: [3, 0, 5] for name in names}}))


def test_the_split_is_drawn_with_the_names_of_few_clients(tmp_path, saved):
    write_split(tmp_path, ["a$_$b", "x" * 64, *(f"client-{n}" for n in range(28))])
    figures.bubbles(tmp_path, tmp_path / "few.png")
    assert x_ticks(saved[0])[:3] == [r"a\$_\$b", "x" * 19 + "…", "client-0"]
    assert len(x_ticks(saved[0])) == 30
    write_split(tmp_path, [f"client-{n}" for n in range(31)])
    figures.bubbles(tmp_path, tmp_path / "many.png")
    assert x_ticks(saved[1])[1] == "2"


DAMAGE = [b"", b'{"curve": [1', b"\xff\xfe\x00", b"[]", b"null"]


@pytest.mark.parametrize("content", [*DAMAGE, b"{}"])
def test_a_damaged_result_is_named(tmp_path, content):
    (tmp_path / "result.json").write_bytes(content)
    with raises("FEDAF-RUN-DAMAGED"):
        figures.read_result(tmp_path)


@pytest.mark.parametrize("content", [*DAMAGE, b"{}", b'{"counts": {"a": [1, 2], "b": [1]}}', b'{"counts": []}'])
def test_a_damaged_split_is_named(tmp_path, content):
    (tmp_path / "partition.json").write_bytes(content)
    with raises("FEDAF-RUN-DAMAGED"):
        figures.bubbles(tmp_path, tmp_path / "partition.png")


@pytest.mark.parametrize(
    "content",
    [
        *DAMAGE,
        b'{"a": {}}',
        b'{"a": 1}',
        b'{"a": {"classes": 3, "height": 2}}',
        b'{"b": {"classes": [0], "height": 2}}',
    ],
)
def test_a_damaged_index_of_images_is_named(tmp_path, content):
    folder = tmp_path / "condensed"
    folder.mkdir()
    Image.new("L", (5, 2)).save(folder / "a.png")
    (folder / "index.json").write_bytes(content)
    with raises("FEDAF-RUN-DAMAGED"):
        figures.gallery(tmp_path, tmp_path / "condensed.png")


def test_every_method_has_its_own_colour_and_those_of_this_package_stand_out(tmp_path, saved):
    results = [a_result(method=name, curve=(1.0, 2.0)) for name in METHODS]
    figures.curves(results, tmp_path / "curves.png")
    lines = {line.get_label(): line for line in saved[0].axes[0].get_lines()}
    assert list(lines) == list(METHODS)
    assert len({line.get_color() for line in lines.values()}) == len(METHODS.names)
    widths = {name: line.get_linewidth() for name, line in lines.items()}
    assert widths.pop("fedaf-plus") > widths.pop("fedaf") > max(widths.values())


def test_references_are_grey_and_not_solid(tmp_path, saved):
    figures.curves([a_result(method=name, curve=(1.0, 2.0)) for name in (*REFERENCES, "fedavg")], tmp_path / "c.png")
    *references, other = saved[0].axes[0].get_lines()
    for line in references:
        red, green, blue = to_rgb(line.get_color())
        assert red == green == blue
        assert line.get_linestyle() != "-"
    assert other.get_linestyle() == "-"


def test_runs_of_one_method_are_one_line_with_a_band(tmp_path, saved):
    results = [a_result(method="fedavg", curve=curve) for curve in ((10.0, 20.0), (30.0, 60.0), (20.0, 40.0, 99.0))]
    figures.curves(results, tmp_path / "curves.png")
    axes = saved[0].axes[0]
    (line,) = axes.get_lines()
    assert line.get_ydata().tolist() == [20.0, 40.0]
    (band,) = axes.collections
    assert band.get_paths()[0].get_extents().y0 == 10.0
    assert band.get_paths()[0].get_extents().y1 == 60.0


def test_lines_of_no_method_and_second_lines_of_one_differ_too(tmp_path, saved):
    labels = ["FedAF", "FedAF (version 1)", "a control", "another control"]
    methods = {"FedAF": "fedaf", "FedAF (version 1)": "fedaf", "a control": "fedaf-zero-steps"}
    figures.seed_curves({label: [[1.0, 2.0]] for label in labels}, tmp_path / "curves.png", title="t", methods=methods)
    styles = [(line.get_color(), line.get_linestyle()) for line in saved[0].axes[0].get_lines()]
    assert len(set(styles)) == len(labels)
    assert styles[0][0] == styles[1][0]


def finished(run: Path, **more) -> Path:
    """Write a finished run of two clients and three classes, and return its directory."""
    write_split(run, ["a", "b"])
    (run / "result.json").write_text(json.dumps(a_result(classes=["cat", "dog", "$ox$"], **more)))
    return run


def test_the_split_names_classes_the_setting_and_the_size_of_its_circles(tmp_path, saved):
    figures.bubbles(finished(tmp_path, dataset="pets"), tmp_path / "split.png")
    axes = saved[0].axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["cat", "dog", r"\$ox\$"]
    assert axes.get_title() == "samples per class: pets, 2 clients, iid, 1 round, seed 0"
    sizes = [int(text.get_text()) for text in saved[0].legends[0].get_texts()]
    circles = axes.collections
    assert sizes[-1] == 5
    drawn = circles[0].get_sizes().max()
    assert [circle.get_sizes()[0] for circle in circles[1:]] == [drawn * size / 5 for size in sizes]


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, [1]), (5, [5]), (10, [1, 5, 10]), (142, [10, 50, 142]), (5000, [100, 500, 5000])]
)
def test_the_legend_of_circles_has_round_numbers_below_the_largest(tmp_path, saved, most, sizes):
    figures.draw_bubbles({"a": [most, 0]}, tmp_path / "split.png")
    assert [int(text.get_text()) for text in saved[0].legends[0].get_texts()] == sizes


def test_the_split_of_an_older_run_has_numbers_for_classes(tmp_path, saved):
    write_split(tmp_path, ["a"])
    figures.bubbles(tmp_path, tmp_path / "split.png")
    assert [tick.get_text() for tick in saved[0].axes[0].get_yticklabels()] == ["0", "1", "2"]


def test_shared_images_are_labelled_with_their_class(tmp_path, saved):
    folder = finished(tmp_path) / "condensed"
    folder.mkdir()
    Image.new("L", (9, 9)).save(folder / "a.png")
    (folder / "index.json").write_text(json.dumps({"a": {"classes": [1], "columns": 1, "height": 8, "width": 8}}))
    figures.gallery(tmp_path, tmp_path / "condensed.png")
    assert [tick.get_text() for tick in saved[0].axes[0].get_yticklabels()] == ["a: dog"]
    assert "condensed images of m" in saved[0].axes[0].get_title()


def test_curves_have_the_setting_as_title_and_a_dotted_line_at_chance(tmp_path, saved):
    figures.curves([a_result(classes=["a", "b", "c", "d"])], tmp_path / "curves.png")
    axes = saved[0].axes[0]
    assert axes.get_title() == "d, 2 clients, iid, 1 round, seed 0"
    (chance,) = [line for line in axes.lines if line.get_label() == "chance"]
    assert list(chance.get_ydata()) == [25.0, 25.0]
    assert chance.get_linestyle() == ":"
    figures.curves([a_result()], tmp_path / "older.png")
    assert len(saved[1].axes[0].lines) == 1


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
def test_the_ending_of_the_file_is_its_format(tmp_path, ending, start):
    assert figures.curves([a_result()], tmp_path / f"curves.{ending}").read_bytes().startswith(start)


def live_lines(width: int, title: str) -> list[str]:
    """What the live display shows at a width, without control codes."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, emoji=False, color_system=None)
    live = LiveProgress(console)
    live.started(title=title, rounds=200, first_round=1, phases=2, device="cpu")
    live.round_started(112)
    live.phase_started("condense", 10)
    live.round_ended({"round": 112, "accuracy": 98.76, "seconds": {"condense": 1.0}})
    live.progressed("client-hospital-a", 1, 2)
    live.ended()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "\n", out.getvalue())
    return [line.rstrip() for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize(
    "title", ["fedaf on digits", "fedaf-plus on folder:/data/a/very/long/path/of/some/images/of/cats"]
)
def test_the_live_display_fits_its_terminal_with_a_bar_and_whole_words(width, title):
    *_, line = live_lines(width, title)
    assert len(line) <= width
    assert line.count("━") >= 6  # 112 of 200 rounds in a bar of at least 12 characters
    words = set(re.split(r" · ", re.split("[━╸╺]+", line)[-1].strip()))
    left = {word for word in words if word.endswith(" left")}
    assert words - left <= {"round 112/200", "condense", "client-hospital-a", "98.76 %"}
    assert "round 112/200" in words
    assert len(words) >= (2 if width == 60 else 3)
    assert "…" not in line or len(title) > 40
    if width == 140 and len(title) < 40:
        assert len(words) == 5
