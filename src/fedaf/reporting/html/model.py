"""Sections about the model: metrics and loss terms by round, and its accuracy by class, client and domain."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from fedaf.federation.metrics import ACCURACY, METRICS, Metric, curve_of
from fedaf.reporting.html import svg
from fedaf.reporting.html.blocks import Block, Cell, Chart, Num, Section, Table, Text
from fedaf.reporting.html.groups import Group, Variant
from fedaf.reporting.html.reading import Run
from fedaf.reporting.html.summary import number
from fedaf.reporting.html.svg import Drawing, Series

_PER_CENT = (0.0, 100.0)
_MOST_ROWS = 40  # classes or clients that a chart with a row for each can show
_LARGEST_TABLE = 30  # classes up to which the whole confusion matrix is a table
_MOST_CONFUSIONS = 40
_MOST_MATRICES, _MOST_CELLS = 8, 20_000

Curve = Sequence[float | None]


def curves(group: Group) -> Section | None:
    """Return every metric by round."""
    blocks: list[Block] = []
    for metric in METRICS.values():
        series = _series(group, partial(_curve, metric.name))
        if series:
            blocks.append(_curve_chart(group, metric, series))
    band = " The line is the mean over seeds, the band reaches from the lowest to the highest seed."
    intro = "Metrics on the test data after each round." + (band if len(group.seeds) > 1 else "")
    return Section("curves", "Curves", intro, blocks) if blocks else None


def losses(group: Group) -> Section | None:
    """Return every loss term by round."""
    blocks: list[Block] = []
    terms: dict[str, None] = {}
    for variant in group.variants:
        for run in variant.runs:
            for line in run.rounds:
                terms |= dict.fromkeys(line.get("losses") or {})
    for term in terms:
        series = _series(group, partial(_losses, term))
        if series:
            known = [value for one in series for seed in one.values for value in seed if value is not None]
            chart = svg.lines(series, bounds=(0.0 if min(known) >= 0 else None, None))
            table = _by_round(f"Loss term {term} by round", series, 4)
            blocks.append(Chart(f"{term}", chart, table, f"The loss term {term} by round.", legend=series))
    intro = "The terms of the loss in each round, without their weights: of the clients and of the server."
    return Section("losses", "Loss terms", intro, blocks) if blocks else None


def by_class(group: Group) -> Section | None:
    """Return the accuracy of each class after the last round, and the confusion matrices."""
    known = [v for v in group.variants if v.first.last.get("accuracy_by_class")]
    blocks: list[Block] = []
    if known:
        names = known[0].first.classes
        series = [_of(v, [_by_label(run, len(names)) for run in v.runs]) for v in known]
        blocks += _rows_chart("Accuracy by class, per cent", "class", names, series, known)
    matrices = [v for v in group.variants if v.first.last.get("confusion")]
    most = max(1, min(_MOST_MATRICES, _MOST_CELLS // max(1, len(group.variants[0].first.classes)) ** 2))
    blocks += [_confusion(variant) for variant in matrices[:most]]
    if len(matrices) > most:
        blocks.append(Text([f"The matrices of {len(matrices) - most} more methods are in their result.json."]))
    intro = "After the last round. A row of a confusion matrix is a true class, a column a prediction."
    if len(group.seeds) > 1:
        intro += " Accuracies are means over seeds; confusion matrices are of the first seed."
    return Section("classes", "Classes", intro, blocks) if blocks else None


def by_client(group: Group) -> Section | None:
    """Return the accuracy of each client after the last round, of the first seed."""
    key = "accuracy_by_client"
    known = [v for v in group.variants if v.first.last.get(key) and not v.first.is_private]
    if not known:
        return None
    names = _in_order({name for v in known for name in v.first.last[key]})
    series = [_of(v, [[v.first.last[key].get(name) for name in names]]) for v in known]
    blocks = _rows_chart("Accuracy by client, per cent", "client", names, series, known, size="wide")
    intro = (
        "Accuracy after the last round on the classes or the domain that a client holds, as the client would see it."
        f"{_seed_note(group)}"
    )
    return Section("clients", "Clients", intro, blocks)


def by_domain(group: Group) -> Section | None:
    """Return the accuracy of each domain, in the best test round."""
    key = "best_accuracy_by_domain"
    known = [v for v in group.variants if all(isinstance(run.result.get(key), Mapping) for run in v.runs)]
    if not known:
        return None
    names = list(known[0].first.result[key])
    series = [_of(v, [[run.result[key].get(name) for name in names] for run in v.runs]) for v in known]
    blocks = _rows_chart("Accuracy by domain, per cent", "domain", names, series, known, size="wide")
    return Section("domains", "Domains", "Accuracy on the test images of each domain, in the best test round.", blocks)


def _curve_chart(group: Group, metric: Metric, series: Sequence[Series]) -> Chart:
    first = group.variants[0].first
    is_share = metric.unit == "%"
    chance = 100 / len(first.classes) if metric is ACCURACY and first.result.get("classes") else None
    known = [value for one in series for seed in one.values for value in seed if value is not None]
    near = chance is not None and min(known) - chance <= max(known) - min(known)
    options: dict[str, Any] = {"bounds": _PER_CENT if is_share else (0.0, metric.most)}
    options |= {"reference": chance if near else None}  # far away, it would leave no room for the lines
    wide = metric is ACCURACY
    title = f"{metric.title.capitalize() if metric.title.islower() else metric.title}{', per cent' if is_share else ''}"
    line = "The dotted line is the accuracy of guessing" if near else "Guessing has an accuracy of"
    chance_note = "" if chance is None else f" {line}, {chance:.1f} %." if near else f" {line} {chance:.1f} %."
    return Chart(
        title,
        svg.lines(series, width=860, height=320, **options) if wide else svg.lines(series, **options),
        _by_round(f"{title} by round", series, metric.digits),
        f"{metric.meaning.capitalize()}, after each round.{chance_note}",
        narrow=svg.lines(series, **options) if wide else None,
        legend=series,
        size="wide" if wide else "small",
    )


def _curve(metric: str, run: Run) -> Curve:
    return curve_of(run.result, metric)


def _losses(term: str, run: Run) -> Curve:
    return [(line.get("losses") or {}).get(term) for line in run.rounds]


def _series(group: Group, read: Callable[[Run], Curve]) -> list[Series]:
    """Return the curves of the variants that have any value."""
    found = []
    for variant in group.variants:
        values = [list(read(run)) for run in variant.runs]
        if any(value is not None for seed in values for value in seed):
            found.append(_of(variant, values))
    return found


def _of(variant: Variant, values: Sequence[Curve]) -> Series:
    style = variant.style
    return Series(variant.label, style.css, values, style.dash, style.width)


def _by_round(caption: str, series: Sequence[Series], digits: int) -> Table:
    rounds = max(one.length for one in series)
    rows: list[list[Cell]] = []
    for index in range(rounds):
        cells = [number([seed[index] for seed in one.values if index < len(seed)], digits) for one in series]
        rows.append([str(index + 1), *cells])
    return Table(caption, ["round", *(one.label for one in series)], rows)


def _by_label(run: Run, count: int) -> list[float | None]:
    found = list(run.last.get("accuracy_by_class") or [])
    return [*found, *[None] * count][:count]


def _rows_chart(
    title: str,
    what: str,
    names: Sequence[str],
    series: Sequence[Series],
    variants: Sequence[Variant],
    *,
    size: str = "half",
) -> list[Block]:
    """Return a chart with a row for each class, client or domain; a matrix of colours if they are many."""
    rows = [
        [name, *(number([seed[index] for seed in one.values]) for one in series)] for index, name in enumerate(names)
    ]
    table = Table(title, [what, *(one.label for one in series)], rows)
    described = f"One row for each {what}, one mark for each method."
    if len(names) <= _MOST_ROWS:
        drawn = svg.dots(names, series, bounds=_PER_CENT, width=900 if size == "wide" else 500)
        narrow = svg.dots(names, series, bounds=_PER_CENT, width=350)
        return [Chart(title, drawn, table, described, narrow=narrow, legend=series, size=size)]
    values = [[value or 0.0 for value in one.means] for one in series]
    drawn = svg.heat(
        [v.label for v in variants], names, values, level=lambda _, value: value / 100, width=860, largest_cell=20
    )
    described = f"One row for each method, one column for each {what}; darker is higher."
    return [Chart(title, drawn, table, described, size="wide")]


def _confusion(variant: Variant) -> Chart:
    run = variant.first
    matrix, names = run.last["confusion"], run.classes
    totals = [max(1, sum(row)) for row in matrix]
    title = f"Confusion matrix of {variant.label}, seed {run.result['seed']}"

    def draw(width: int) -> Drawing:
        return svg.heat(names, names, matrix, level=lambda row, count: count / totals[row], width=width)

    rows: list[list[Cell]]
    if len(matrix) <= _LARGEST_TABLE:
        rows = [[names[i], *(Num(str(count), count) for count in row)] for i, row in enumerate(matrix)]
        table = Table(f"{title}: rows are true classes, columns predictions", ["true class", *names], rows)
    else:
        pairs = [(count, i, j) for i, row in enumerate(matrix) for j, count in enumerate(row) if i != j and count]
        most = sorted(pairs, key=lambda pair: (-pair[0], pair[1:]))[:_MOST_CONFUSIONS]
        rows = [[names[i], names[j], Num(str(count), count)] for count, i, j in most]
        table = Table(f"{title}: its most frequent confusions", ["true class", "predicted as", "images"], rows)
    described = "Each row is a true class; darker cells have more of its images."
    narrow = draw(350) if len(matrix) <= _LARGEST_TABLE else None
    return Chart(title, draw(540), table, described, narrow=narrow, size="half")


def _in_order(names: set[str]) -> list[str]:
    """Return names of clients in their usual order, client-2 before client-10."""
    return sorted(names, key=lambda name: (len(name), name))


def _seed_note(group: Group) -> str:
    return " Clients differ from seed to seed, so this is the first seed." if len(group.seeds) > 1 else ""
