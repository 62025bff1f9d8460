"""The first sections of a report: results, verdicts, and what the numbers rest on."""

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from fedaf.reporting import tables
from fedaf.reporting.differences import EXPLANATION, MEASURES, ONE_SEED, Compared, differences
from fedaf.reporting.html.blocks import Badge, Block, Cell, Facts, Named, Num, Section, Table, Text, Tiles, Verdicts
from fedaf.reporting.html.groups import Group, Variant
from fedaf.reporting.statistics import mean_and_deviation
from fedaf.reporting.tables import Result

_NOTHING = "\N{EN DASH}"
_MOST_SENTENCES = 6  # verdicts that are also said in words
_KINDS = {"better": "good", "worse": "bad"}
_NBSP = "\N{NO-BREAK SPACE}"


def summary(group: Group) -> Section:
    """Return the results of all variants, their verdicts, and what the numbers rest on."""
    blocks: list[Block] = []
    single = len(group.results) == 1
    if single:
        blocks.append(_tiles(group.results[0]))
    else:
        blocks.append(_results(group))
    verdicts, notes = _verdicts(group)
    sentences = [
        say(result) for result in _firsts(group) for say in (tables.personal_sentence, tables.reference_sentence)
    ]
    blocks += verdicts
    if said := list(dict.fromkeys(filter(None, [*notes, *sentences]))):
        blocks.append(Text(said))
    blocks.append(_rests_on(group))
    return Section("summary", "Summary", "", blocks)


def number(values: Iterable[float | None], digits: int = 2, *, bar: float | None = None) -> Cell:
    """Return the mean and deviation of a figure over seeds; a dash if it is unknown for one of them."""
    found = list(values)
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return _NOTHING
    mean = fmean(known)
    share = None if bar is None else max(0.0, min(1.0, mean / bar))
    return Num(mean_and_deviation(known, digits).replace(" ", _NBSP), mean, share)


def size(values: Iterable[float | None]) -> Cell:
    """Return the mean of a number of bytes over seeds."""
    known = [value for value in values if value is not None]
    return Num(tables.size(fmean(known)), fmean(known)) if known else _NOTHING


def duration(values: Iterable[float]) -> Cell:
    """Return the mean of some seconds over seeds."""
    mean = fmean(values)
    return Num(tables.duration(mean), mean)


def name_of(variant: Variant) -> Named:
    """Return the label of a variant with its colour."""
    return Named(variant.label, variant.style.css)


def _firsts(group: Group) -> list[Result]:
    return [variant.results[0] for variant in group.variants]


def _tiles(result: Result) -> Tiles:
    tiles = []
    for key, name, note in (
        ("best_accuracy", "Best test round", "chosen on the test split"),
        ("last_accuracy", "Last round", f"after round {result['rounds']}"),
        ("selected_accuracy", "Selected round", f"round {result.get('selected_round')}, chosen on held-out images"),
    ):
        if (value := result.get(key)) is not None:
            tiles.append((name, Num(f"{value:.2f}{_NBSP}%", value), note))
    upload, seconds = result["upload_bytes_per_client_round"], result["seconds"]
    if upload is not None:
        tiles.append(("Upload", Num(tables.size(upload), upload), "per client and round"))
    tiles.append(("Time", Num(tables.duration(seconds), seconds), tables.counted(result["rounds"], "round")))
    return Tiles(tiles)


def _results(group: Group) -> Table:
    selected = any(result.get("selected_round") for result in group.results)
    columns = ["method", "seeds", "best test round %", "last round %", *(["selected round %"] if selected else [])]
    columns += ["upload / client / round", "download / client / round", "time"]
    rows = []
    for variant in group.variants:
        runs = variant.results
        cells: list[Cell] = [name_of(variant), Num(str(len(runs)), len(runs))]
        cells.append(number((run["best_accuracy"] for run in runs), bar=100.0))
        cells.append(number((run["last_accuracy"] for run in runs), bar=100.0))
        if selected:
            cells.append(number(run.get("selected_accuracy") for run in runs))
        cells += [size(run[f"{way}_bytes_per_client_round"] for run in runs) for way in ("upload", "download")]
        rows.append([*cells, duration([run["seconds"] for run in runs])])
        if tables.has_personal_row(runs[0]):
            own = [number(run["personal"][f"{which}_accuracy"] for run in runs) for which in ("best", "last")]
            rows.append([f"{variant.label} (personal)", "", *own, *("" for _ in columns[4:])])
    return Table("Results: mean ± sample standard deviation over seeds", columns, rows)


def _verdicts(group: Group) -> tuple[list[Block], list[str]]:
    """Return the verdicts with their table, and what a reader must know about them."""
    if len(group.variants) < 2:
        return [], []
    compared = [one for one in differences(group.results, group.against, MEASURES) if not one.reference]
    judged = [one for one in compared if one.difference.low is not None]
    blocks: list[Block] = []
    shown = [one for one in judged if one.measure.name == "best_accuracy"]
    said = 0 < len(shown) <= _MOST_SENTENCES
    if said:
        blocks.append(Verdicts([(_badge(one), _sentence(one)) for one in shown]))
    if judged:
        rows: list[list[Cell]] = [
            [f"{one.method}, {one.measure.title}", _signed(one.difference.mean), _interval(one), _badge(one)]
            for one in judged
        ]
        caption = f"Difference to {group.against}, paired over seeds"
        blocks.append(Table(caption, ["method and figure", "mean", "95 % interval", "verdict"], rows, folded=said))
        return blocks, [EXPLANATION]
    return blocks, [ONE_SEED] if compared else []


def _badge(one: Compared) -> Badge:
    return Badge(one.verdict, _KINDS.get(one.verdict, "plain"))


def _sentence(one: Compared) -> str:
    found = one.difference
    return (
        f"{one.method} compared with {one.against}: {_signed(found.mean).text} points in the best test round "
        f"(95 % interval {_interval(one)}, {found.seeds} seeds)."
    )


def _interval(one: Compared) -> str:
    low, high = one.difference.low or 0.0, one.difference.high or 0.0
    return f"{_signed(low).text} to {_signed(high).text}"


def _signed(value: float) -> Num:
    return Num(f"{value:+.2f}".replace("-", "\N{MINUS SIGN}"), value)


def _rests_on(group: Group) -> Facts:
    """Return what a reader must know to judge the numbers."""
    results = group.results
    selected = any(result.get("selected_round") for result in results)
    chosen = "The best test round is chosen on the test split, so it is optimistic; the last round is not chosen."
    if selected:
        chosen += " The selected round is chosen on held-out training images, and not on the test split."
    stopped = [r for r in results if isinstance(r.get("planned_rounds"), int) and r["rounds"] < r["planned_rounds"]]
    rounds = _several(str(result["rounds"]) for result in results)
    if stopped:
        rounds += f" ({len(stopped)} of {len(results)} runs stopped before their last round)"
    facts: dict[str, str] = {
        "Runs": f"{len(results)}: {group.counted}, "
        + (f"seeds {_numbers(group.seeds)}" if len(group.seeds) > 1 else f"seed {group.seeds[0]}"),
        "Tested on": _several(_tested_on(result) for result in results),
        "Chosen on the test split": chosen,
        "Rounds": rounds,
        "Computed on": _several(_computed_on(result) for result in results),
    }
    if group.repeated:
        facts["Not shown"] = (
            f"{len(group.repeated)} runs have the settings and the seed of another one: {', '.join(group.repeated[:8])}"
        )
    return Facts("What the numbers rest on", {name: [text] for name, text in facts.items()})


def _tested_on(result: Result) -> str:
    what = result.get("tested_on")
    where = "the test split" if what in (None, "test") else str(what)
    images = result.get("test_images") or _images_in(result)
    return f"{where}, {images} images" if images else where


def _images_in(result: Result) -> int | None:
    """Return the number of test images, from the confusion matrix of runs that do not record it."""
    matrix: Any = ((result.get("metrics") or {}).get("last") or {}).get("confusion")
    return sum(map(sum, matrix)) if matrix else None


def _computed_on(result: Result) -> str:
    parts = [result.get("device"), result.get("engine"), result.get("precision")]
    return ", ".join(str(part) for part in parts if part) or "not recorded"


def _several(values: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(values))


def _numbers(seeds: Sequence[int]) -> str:
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(map(str, seeds))
