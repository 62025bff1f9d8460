"""Tables for a terminal."""

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

_MOST_CLASSES = 20


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


def partition_table(counts: Mapping[str, Sequence[int]]) -> Table:
    """Samples of each class by client; with many classes, only how many of them a client holds."""
    classes = len(next(iter(counts.values())))
    table = Table(title="Who holds what (samples by class)", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("client", no_wrap=True)
    headers = [str(c) for c in range(classes)] if classes <= _MOST_CLASSES else ["classes held"]
    for header in [*headers, "all"]:
        table.add_column(header, justify="right", no_wrap=True)
    for client, row in counts.items():
        held = [str(n) if n else "·" for n in row] if classes <= _MOST_CLASSES else [str(sum(n > 0 for n in row))]
        table.add_row(client, *held, str(sum(row)))
    return table


def counts_table(kind: str, train: Sequence[int], test: Sequence[int], names: Sequence[str]) -> Table:
    """Samples of each class, or of another ``kind``; of many, only the fewest, the median and the most."""
    table = Table(title=f"Samples by {kind}", title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column(kind, no_wrap=True)
    for header in ("train", "test"):
        table.add_column(header, justify="right", no_wrap=True)
    if len(train) <= _MOST_CLASSES:
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


def results_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Methods side by side."""
    first = results[0]
    split = f"Dirichlet {first['alpha']:g}" if first["alpha"] is not None else first["partition"]
    split = _SPLITS.get(split, split)
    title = f"{first['dataset']}, {first['clients']} clients, {split}, {first['rounds']} rounds, seed {first['seed']}"
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    for header in ("best accuracy", "last accuracy", "upload / client / round", "time"):
        table.add_column(header, justify="right")
    for result in results:
        table.add_row(
            result["method"],
            f"{result['best_accuracy']:.2f} %",
            f"{result['last_accuracy']:.2f} %",
            size(result["upload_bytes_per_client_round"]),
            duration(result["seconds"]),
        )
    return table


def domains_table(results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Methods side by side on each domain, in their best round; ``None`` for data without domains."""
    domains = list(results[0].get("best_accuracy_by_domain") or {})
    if not domains:
        return None
    table = Table(title="Accuracy by domain in the best round, per cent", title_justify="left")
    table.add_column("method")
    for header in (*domains, "average"):
        table.add_column(header, justify="right")
    for result in results:
        values = [*result["best_accuracy_by_domain"].values(), result["best_accuracy"]]
        table.add_row(result["method"], *(f"{value:.2f}" for value in values))
    return table


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
