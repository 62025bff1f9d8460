"""Tables for a terminal."""

import math
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from fedaf.data.partitions.domain import client_of_domain
from fedaf.data.spec import NO_DATA

_MOST_ROWS = 20
_MOST_COLUMNS = 12  # of counts, in 80 characters


def duration(seconds: float) -> str:
    """Seconds as a person would say them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Bytes as a person would say them, in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def per_cent(accuracy: float | None) -> str:
    """An accuracy; over a network it may be that nobody has test data."""
    return "unknown" if accuracy is None else f"{accuracy:.2f} %"


def partition_table(counts: Mapping[str, Sequence[int]]) -> Table:
    """Samples of each class by client; with many classes, only how many of them a client holds."""
    classes = len(next(iter(counts.values())))
    table = Table(title="Who holds what (samples by class)", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("client", no_wrap=True)
    headers = [str(c) for c in range(classes)] if classes <= _MOST_COLUMNS else ["classes held"]
    for header in [*headers, "all"]:
        table.add_column(header, justify="right", no_wrap=True)
    for client, row in counts.items():
        held = [str(n) if n else "·" for n in row] if classes <= _MOST_COLUMNS else [str(sum(n > 0 for n in row))]
        table.add_row(escape(client), *held, str(sum(row)))
    return table


def counts_table(kind: str, train: Sequence[int], test: Sequence[int], names: Sequence[str]) -> Table:
    """Samples of each class, or of another ``kind``; of many, only the fewest, the median and the most."""
    table = Table(title=f"Samples by {kind}", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(kind, no_wrap=True)
    for header in ("train", "test"):
        table.add_column(header, justify="right", no_wrap=True)
    if len(train) <= _MOST_ROWS:
        rows = [(names[c] if names else str(c), train[c], test[c]) for c in range(len(train))]
    else:
        rows = [
            (f"fewest of {len(train)}", min(train), min(test)),
            ("median", median_low(train), median_low(test)),
            ("most", max(train), max(test)),
        ]
    for name, *counts in [*rows, ("all", sum(train), sum(test))]:
        table.add_row(escape(name), *map(str, counts))
    return table


_SPLITS = {"domain": "a client for each domain"}


def results_table(results: Sequence[Mapping[str, Any]], *, target: float | None = None) -> Table:
    """Methods side by side: accuracy in per cent, rounds until it reaches ``target``, bytes for each client and round.
    Without a target it is what all of them reach."""
    first = results[0]
    split = f"Dirichlet {first['alpha']:g}" if first["alpha"] is not None else first["partition"]
    split = _SPLITS.get(split, split)
    clients, rounds = _counted(first["clients"], "client"), _counted(first["rounds"], "round")
    own = first["dataset"] == NO_DATA  # clients brought theirs: there was no split
    setting = ["own data", clients] if own else [first["dataset"], clients, split]
    title = ", ".join([*setting, rounds, f"seed {first['seed']}"])
    goal = math.floor(min(r["best_accuracy"] or 0 for r in results)) if target is None else target
    table = Table(title=escape(title), title_justify="left")
    table.add_column("method", no_wrap=True)
    headers = ["best %", "last %", f"rounds to {goal:g} %", "up / client / round", "down / client / round", "time"]
    if len(results) == 1 and target is None:
        headers.pop(2)
    for header in headers:
        table.add_column(header, justify="right")
    for result in results:
        cells = [
            *(per_cent(result[f"{which}_accuracy"]).removesuffix(" %") for which in ("best", "last")),
            rounds_to(result["curve"], goal),
            size(result["upload_bytes_per_client_round"]),
            size(result["download_bytes_per_client_round"]),
            duration(result["seconds"]),
        ]
        if len(results) == 1 and target is None:
            cells.pop(2)
        name = escape(result["method"])
        table.add_row(name, *cells)
        if personal := result.get("personal"):
            accuracy = (f"{personal['best_accuracy']:.2f}", f"{personal['last_accuracy']:.2f}")
            table.add_row(f"{name} (own)", *accuracy, *("" for _ in cells[2:]))
    return table


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def rounds_to(curve: Sequence[float | None], target: float) -> str:
    """The first round that reaches an accuracy."""
    return next((str(number) for number, accuracy in enumerate(curve, 1) if (accuracy or 0) >= target), "never")


def personal_sentence(result: Mapping[str, Any]) -> str | None:
    """What the two rows of a method with personal models are."""
    if not result.get("personal"):
        return None
    return (
        f"{result['method']} has no global model: its first row is the averaged model with averaged BatchNorm, "
        "which clients send for this report only; 'own' is the mean over clients of their own models on their own "
        "test data (their domain's, or all)."
    )


def domains_table(results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Methods side by side on each domain, in their best round; ``None`` for data without domains."""
    domains = list(results[0].get("best_accuracy_by_domain") or {})
    if not domains:
        return None
    table = Table(title="Accuracy by domain in the best round, per cent", title_justify="left")
    table.add_column("method", no_wrap=True)
    for header in (*domains, "average"):
        table.add_column(escape(header), justify="right")
    for result in results:
        values = [*result["best_accuracy_by_domain"].values(), result["best_accuracy"]]
        method = escape(result["method"])
        table.add_row(method, *(f"{value:.2f}" for value in values))
        personal = result.get("personal")
        if personal and result["partition"] == "domain":  # then clients are domains
            own = [personal["best_by_client"].get(client_of_domain(name)) for name in domains]
            cells = ["·" if value is None else f"{value:.2f}" for value in own]  # who was away in that round
            table.add_row(f"{method} (own)", *cells, f"{personal['best_accuracy']:.2f}")
    return table


def overhead(by_phase: Mapping[str, Mapping[str, float]]) -> str:
    """For each phase over a network what it took beside work, and what of that was loading."""
    return ", ".join(
        f"{phase} {o['all']:.1f} s (import {o['import']:.1f}, data {o['data']:.1f}, model {o['model']:.1f})"
        for phase, o in by_phase.items()
    )


def overhead_sentence(result: Mapping[str, Any]) -> str | None:
    """What a network cost in time, for runs over one."""
    spent = result.get("overhead_seconds")
    return f"Beside work, a phase took in the mean: {overhead(spent)}." if spent else None


def audit_sentence(result: Mapping[str, Any]) -> str | None:
    """The copy audit in words, for methods that share images."""
    audit = result.get("copy_audit")
    if not audit:
        return None
    return (
        f"Copy audit of {result['method']}, worst round: "
        f"likeness to the nearest private image (PSNR, higher is closer) "
        f"{audit['psnr_mean']:.1f} dB on average, {audit['psnr_max']:.1f} at most; of unseen real images "
        f"{audit['held_out_psnr_mean']:.1f} and {audit['held_out_psnr_max']:.1f}. The nearest is an image it was made "
        f"from for {100 * audit['from_source']:.0f} % ({100 * audit['held_out_from_source']:.0f} % by chance)."
    )
