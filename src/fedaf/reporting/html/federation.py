"""Sections about the federation: who holds what, bytes and seconds, and failures."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedaf.reporting import tables
from fedaf.reporting.html import svg
from fedaf.reporting.html.blocks import Block, Cell, Chart, Num, Section, Table, Text
from fedaf.reporting.html.groups import Group, Variant
from fedaf.reporting.html.reading import Run
from fedaf.reporting.html.summary import name_of
from fedaf.reporting.html.svg import Drawing, Series

_WAYS = ("upload", "download")
_MOST_CLIENTS = 40  # in a chart with a row for each
_MOST_HELD = 200  # clients whose samples are shown
_MOST_COLUMNS = 30  # classes of a table of counts
_MOST_FAILURES = 200


def holdings(group: Group) -> Section | None:
    """Return the samples of each class that each client holds, of the first seed that has them."""
    run = next((run for v in group.variants for run in v.runs if run.counts), None)
    if run is None or run.counts is None:
        return None
    counts, names = run.counts, run.classes
    width = len(next(iter(counts.values())))
    names = names if len(names) == width else [str(label) for label in range(width)]
    most = max(1, *(max(row) for row in counts.values()))
    shown = dict(list(counts.items())[:_MOST_HELD])

    def draw(width: int) -> Drawing:
        rows = list(shown.values())
        return svg.heat(list(shown), names, rows, level=lambda _, count: math.sqrt(count / most), width=width)

    title = "Samples by client and class"
    narrow = draw(350) if width <= _MOST_COLUMNS else None
    chart = Chart(title, draw(700), _counts_table(shown, names), _skew(counts), narrow=narrow, size="wide")
    seeds = f" This is the split of seed {run.result['seed']}; every seed has its own." if len(group.seeds) > 1 else ""
    intro = f"{sum(map(sum, counts.values()))} training samples of {len(counts)} clients.{seeds}"
    if len(counts) > len(shown):
        intro += f" The first {len(shown)} clients are shown."
    blocks: list[Block] = [chart, *_left_out(group)]
    return Section("holdings", "Who holds what", intro, blocks)


def _counts_table(counts: Mapping[str, Sequence[int]], names: Sequence[str]) -> Table:
    rows: list[list[Cell]]
    if len(names) <= _MOST_COLUMNS:
        rows = [
            [client, *(Num(str(n), n) for n in row), Num(str(sum(row)), sum(row))] for client, row in counts.items()
        ]
        return Table("Samples by client and class", ["client", *names, "total"], rows)
    rows = [
        [client, ", ".join(f"{names[i]} {n}" for i, n in enumerate(row) if n), Num(str(sum(row)), sum(row))]
        for client, row in counts.items()
    ]
    return Table("Samples by client and class", ["client", "classes and their samples", "total"], rows)


def _skew(counts: Mapping[str, Sequence[int]]) -> str:
    held = [sum(1 for n in row if n) for row in counts.values()]
    totals = [sum(row) for row in counts.values()]
    return (
        f"A client holds {min(held)} to {max(held)} of {len(next(iter(counts.values())))} classes and "
        f"{min(totals)} to {max(totals)} samples. Darker cells have more samples."
    )


def _left_out(group: Group) -> list[Block]:
    rows: list[list[Cell]] = []
    for variant in group.variants:
        found = None if variant.first.is_private else variant.first.result.get("left_out")
        if isinstance(found, Mapping) and found.get("samples"):
            reasons = ", ".join(f"{reason}: {count}" for reason, count in found["by_reason"].items())
            share = Num(f"{100 * found['share']:.1f}", 100 * found["share"])
            rows.append([name_of(variant), Num(str(found["samples"]), found["samples"]), share, reasons])
    caption = "Samples that are never condensed, and the setting that decides"
    return [Table(caption, ["method", "samples", "% of all", "by setting"], rows)] if rows else []


def costs(group: Group) -> Section | None:
    """Return bytes and seconds, by phase and by client."""
    known = [variant for variant in group.variants if any(run.rounds for run in variant.runs)]
    blocks: list[Block] = []
    for way in _WAYS:
        blocks += _bytes_by_phase(known, way)
    blocks += _seconds_by_phase(known)
    blocks += _bytes_by_client(known)
    blocks += _seconds_by_client(known)
    intro = (
        "Bytes are those of the messages, per client that was asked and per round. Seconds are those of a whole phase, "
        "in which clients may work at the same time, summed over rounds. Numbers are means over seeds. Seconds by "
        "client are measured over a network only."
    )
    return Section("costs", "Costs", intro, blocks) if blocks else None


def _bytes_by_phase(variants: Sequence[Variant], way: str) -> list[Block]:
    found = {v.label: _mean_of([_phases(run, f"{way}_bytes") for run in v.runs]) for v in variants}
    title = f"{way.capitalize()} per client and round, by phase"
    return _stacked(title, "bytes", {label: row for label, row in found.items() if row}, tables.size)


def _seconds_by_phase(variants: Sequence[Variant]) -> list[Block]:
    found = {}
    for variant in variants:
        totals = [_summed(line.get("seconds") or {} for line in run.rounds) for run in variant.runs]
        found[variant.label] = _mean_of(totals)
    rows = {label: row for label, row in found.items() if row}
    return _stacked("Seconds of all rounds, by phase", "time", rows, tables.duration)


def _stacked(
    title: str, what: str, rows: Mapping[str, Mapping[str, float]], format: Callable[[float], str]
) -> list[Block]:
    """Return a bar for each variant, divided by phase."""
    if not rows:
        return []
    phases = list(dict.fromkeys(phase for row in rows.values() for phase in row))
    parts = [[row.get(phase, 0.0) for phase in phases] for row in rows.values()]
    drawn, narrow = (svg.bars(list(rows), parts, width=width, format=format) for width in (500, 350))
    cells: list[list[Cell]] = []
    for label, row in rows.items():
        values = [Num(format(row[phase]), row[phase]) if phase in row else "" for phase in phases]
        cells.append([label, *values, Num(format(sum(row.values())), sum(row.values()))])
    table = Table(title, ["method", *phases, "all phases"], cells)
    legend = [Series(phase, f"p{number % 8}", []) for number, phase in enumerate(phases)]
    described = f"One bar for each method: {what} by phase."
    return [Chart(title, drawn, table, described, narrow=narrow, legend=legend, size="half")]


def _bytes_by_client(variants: Sequence[Variant]) -> list[Block]:
    """Return the mean upload per round of each client, of the first seed; the table has the download too."""
    ways = {v.label: {way: _clients(v.first, f"{way}_bytes") for way in _WAYS} for v in variants}
    shown = [v for v in variants if ways[v.label]["upload"]]
    if not shown:
        return []
    clients = sorted({c for v in shown for c in ways[v.label]["upload"]}, key=lambda name: (len(name), name))
    columns = [f"{v.label}, {way}" for v in shown for way in _WAYS]
    rows: list[list[Cell]] = []
    for client in clients:
        values = [ways[v.label][way].get(client) for v in shown for way in _WAYS]
        rows.append([client, *("" if value is None else Num(tables.size(value), value) for value in values)])
    unit, name = _unit(max(value for v in shown for value in ways[v.label]["upload"].values()))
    table = Table("Bytes per round by client, first seed", ["client", *columns], rows)
    points = [(v, [_in(unit, ways[v.label]["upload"].get(client)) for client in clients]) for v in shown]
    return [_by_client(f"Upload per round by client, {name}", clients, points, table)]


def _seconds_by_client(variants: Sequence[Variant]) -> list[Block]:
    """Return the mean time per round until all replies of a client arrived, of the first seed."""
    found = [(v, seconds) for v in variants if (seconds := _clients(v.first, "client_seconds"))]
    if not found:
        return []
    clients = sorted({c for _, seconds in found for c in seconds}, key=lambda name: (len(name), name))
    rows: list[list[Cell]] = []
    for client in clients:
        values = [seconds.get(client) for _, seconds in found]
        rows.append([client, *("" if value is None else Num(f"{value:.2f}", value) for value in values)])
    title = "Seconds per round by client"
    table = Table(f"{title}, first seed", ["client", *(v.label for v, _ in found)], rows)
    points = [(v, [seconds.get(client) for client in clients]) for v, seconds in found]
    return [_by_client(title, clients, points, table)]


def _by_client(
    title: str, clients: Sequence[str], points: Sequence[tuple[Variant, Sequence[float | None]]], table: Table
) -> Block:
    """Return a chart with a row for each client, or only its table if there are many clients."""
    if len(clients) > _MOST_CLIENTS:
        return Table(table.caption, table.columns, table.rows, folded=True)
    series = [Series(v.label, v.style.css, [list(values)]) for v, values in points]
    drawn, narrow = (svg.dots(clients, series, bounds=(0.0, None), width=width) for width in (500, 350))
    described = "One row for each client, one mark for each method."
    return Chart(title, drawn, table, described, narrow=narrow, legend=series, size="half")


def _unit(most: float) -> tuple[int, str]:
    """Return the unit in which the axis of a chart of bytes has short numbers."""
    return next(((1 << shift, name) for shift, name in ((20, "MiB"), (10, "KiB")) if most >= 1 << shift), (1, "bytes"))


def _in(unit: int, value: float | None) -> float | None:
    return None if value is None else value / unit


def _phases(run: Run, key: str) -> dict[str, float]:
    """Return the mean bytes per asked client and round, by phase."""
    asked = sum(len(line.get("asked") or ()) for line in run.rounds)
    by_phase: Counter[str] = Counter()
    for line in run.rounds:
        for phase, by_client in (line.get(key) or {}).items():
            by_phase[phase] += sum(by_client.values())
    return {phase: total / max(1, asked) for phase, total in by_phase.items()}


def _clients(run: Run, key: str) -> dict[str, float]:
    """Return the mean bytes or seconds per round by client, over the rounds in which it was asked."""
    totals: dict[str, float] = {}
    asked: Counter[str] = Counter()
    for line in run.rounds:
        asked.update(str(client) for client in line.get("asked") or ())
        for by_client in (line.get(key) or {}).values():
            for client, count in by_client.items():
                totals[client] = totals.get(client, 0) + count
    return {client: total / max(1, asked[client]) for client, total in totals.items()}


def _summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return total


def _mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean over the seeds that have rounds."""
    known = [row for row in rows if row]
    return {name: value / len(known) for name, value in _summed(known).items()}


def failures(group: Group) -> Section | None:
    """Return the clients whose replies did not count, with the reasons that were given."""
    if not any(run.rounds for variant in group.variants for run in variant.runs):
        return None
    rows: list[list[Cell]] = []
    lost = asked = 0
    for variant in group.variants:
        for run in variant.runs:
            by_reason: dict[tuple[str, str], list[int]] = {}
            for number, line in enumerate(run.rounds, 1):
                asked += len(line.get("asked") or ())
                for client, reason in (line.get("failures") or {}).items():
                    lost += 1
                    by_reason.setdefault((str(client), str(reason)), []).append(number)
            for (client, reason), rounds in by_reason.items():
                rows.append([name_of(variant), _whole(run.result["seed"]), client, reason[:500], _rounds(rounds)])
    if not rows:
        nothing = f"Every client that was asked replied in every round ({asked} requests for a round)."
        return Section("failures", "Failures", "", [Text([nothing])])
    shown = rows[:_MOST_FAILURES]
    intro = f"{lost} of {asked} replies did not count. The reasons come from the clients, or from the server's checks."
    if len(rows) > len(shown):
        intro += f" The first {len(shown)} of {len(rows)} are shown."
    table = Table("Replies that did not count", ["method", "seed", "client", "phase and reason", "rounds"], shown)
    return Section("failures", "Failures", intro, [table])


def _whole(number: int) -> Num:
    return Num(str(number), number)


def _rounds(rounds: Sequence[int]) -> str:
    return ", ".join(map(str, rounds[:12])) + (f" and {len(rounds) - 12} more" if len(rounds) > 12 else "")
