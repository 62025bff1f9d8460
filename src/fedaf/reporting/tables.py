"""Tables for a terminal."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from fedaf.data.partitions.domain import client_of_domain
from fedaf.data.spec import NO_DATA

_MOST_ROWS = 20
_MOST_COLUMNS = 12  # of class counts; more do not fit in 80 characters


def duration(seconds: float) -> str:
    """Format seconds for people: ``1.5 s``, ``12 min 30 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 90:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Format a number of bytes in binary units: ``1.22 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def per_cent(accuracy: float | None) -> str:
    """Format an accuracy. It is unknown if no client of a network has test data."""
    return "unknown" if accuracy is None else f"{accuracy:.2f} %"


def _table(title: str, headers: Sequence[str], *, compact: bool = False) -> Table:
    """A table with all columns but the first aligned right; in a compact one, they are not wrapped."""
    style: dict[str, Any] = {"box": SIMPLE, "padding": (0, 1, 0, 0)} if compact else {}
    table = Table(title=escape(title), title_justify="left", **style)
    table.add_column(escape(headers[0]), no_wrap=True)
    for header in headers[1:]:
        table.add_column(escape(header), justify="right", no_wrap=compact)
    return table


def partition_table(counts: Mapping[str, Sequence[int]]) -> Table:
    """Show the samples per class of each client, or the number of classes it holds if there are many."""
    classes = len(next(iter(counts.values())))
    headers = [str(c) for c in range(classes)] if classes <= _MOST_COLUMNS else ["classes held"]
    table = _table("Samples per class of each client", ["client", *headers, "total"], compact=True)
    for client, row in counts.items():
        held = [str(n) if n else "·" for n in row] if classes <= _MOST_COLUMNS else [str(sum(n > 0 for n in row))]
        table.add_row(escape(client), *held, str(sum(row)))
    return table


def counts_table(kind: str, train: Sequence[int], test: Sequence[int], names: Sequence[str]) -> Table:
    """Show the samples of each class or other ``kind``; if there are many, only the fewest, the median and the most."""
    table = _table(f"Samples per {kind}", [kind, "train", "test"], compact=True)
    if len(train) <= _MOST_ROWS:
        rows = [(names[c] if names else str(c), train[c], test[c]) for c in range(len(train))]
    else:
        rows = [
            (f"fewest of {len(train)}", min(train), min(test)),
            ("median", median_low(train), median_low(test)),
            ("most", max(train), max(test)),
        ]
    for name, *counts in [*rows, ("total", sum(train), sum(test))]:
        table.add_row(escape(name), *map(str, counts))
    return table


#: The columns after the method, in order: the header and the cell of a result. A new column is one line.
_COLUMNS: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...] = (
    ("best test round %", lambda result: _bare(result["best_accuracy"])),
    ("last %", lambda result: _bare(result["last_accuracy"])),
    ("up / client / round", lambda result: size(result["upload_bytes_per_client_round"])),
    ("down / client / round", lambda result: size(result["download_bytes_per_client_round"])),
    ("time", lambda result: duration(result["seconds"])),
)
_SPLITS = {"domain": "one client per domain"}


def results_table(results: Sequence[Mapping[str, Any]], *, target: float | None = None) -> Table:
    """Compare methods: accuracy, rounds until it reaches ``target``, bytes per client and round, time, disclosure.

    Args:
        results: The contents of ``result.json`` of each run.
        target: Accuracy in per cent; by default the highest whole number that all methods reach.
    """
    columns = list(_COLUMNS)
    if any(result.get("selected_round") for result in results):
        columns.insert(2, ("selected round %", lambda result: _bare(result.get("selected_accuracy"))))
    if len(results) > 1 or target is not None:
        goal = math.floor(min(r["best_accuracy"] or 0 for r in results)) if target is None else target
        columns.insert(2, (f"rounds to {goal:g} %", lambda result: rounds_to(result["curve"], goal)))
    if len(results) > 1 and any(result.get("disclosed") for result in results):
        columns.append(("images sent (per sample)", disclosed))
    table = _table(_title(results[0]), ["method", *(header for header, _ in columns)])
    for result in results:
        name = escape(result["method"])
        table.add_row(name, *(cell(result) for _, cell in columns))
        if personal := result.get("personal"):
            accuracy = (f"{personal['best_accuracy']:.2f}", f"{personal['last_accuracy']:.2f}")
            table.add_row(f"{name} (personal)", *accuracy, *("" for _ in columns[2:]))
    return table


def _title(result: Mapping[str, Any]) -> str:
    """The setting of a run, for example ``digits, 10 clients, Dirichlet 0.02, 10 rounds, seed 0``."""
    clients, rounds = _counted(result["clients"], "client"), _counted(result["rounds"], "round")
    split = f"Dirichlet {result['alpha']:g}" if result["alpha"] is not None else result["partition"]
    setting = [result["dataset"], clients, _SPLITS.get(split, split)]
    if result["dataset"] == NO_DATA:  # clients brought their data, so there was no split
        setting = ["own data", clients]
    return ", ".join([*setting, rounds, f"seed {result['seed']}"])


def _bare(accuracy: float | None) -> str:
    return per_cent(accuracy).removesuffix(" %")


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def rounds_to(curve: Sequence[float | None], target: float) -> str:
    """Return the first round that reaches an accuracy, or ``never``."""
    return next((str(number) for number, accuracy in enumerate(curve, 1) if (accuracy or 0) >= target), "never")


def personal_sentence(result: Mapping[str, Any]) -> str | None:
    """Explain the two rows of a method with personal models."""
    if not result.get("personal"):
        return None
    return (
        f"{result['method']} has no global model. Its first row is the averaged model with averaged BatchNorm layers, "
        "which clients send for this report only. 'personal' is the mean over clients of each client's model on its "
        "own test data: the test split of its domain, or the whole test split."
    )


def domains_table(results: Sequence[Mapping[str, Any]]) -> Table | None:
    """Compare methods on each domain, in their best round; ``None`` for data without domains."""
    domains = list(results[0].get("best_accuracy_by_domain") or {})
    if not domains:
        return None
    table = _table("Accuracy by domain in the best round, per cent", ["method", *domains, "average"])
    for result in results:
        values = [*result["best_accuracy_by_domain"].values(), result["best_accuracy"]]
        method = escape(result["method"])
        table.add_row(method, *(f"{value:.2f}" for value in values))
        personal = result.get("personal")
        if personal and result["partition"] == "domain":  # then clients are domains
            own = [personal["best_by_client"].get(client_of_domain(name)) for name in domains]
            cells = ["·" if value is None else f"{value:.2f}" for value in own]  # absent in that round
            table.add_row(f"{method} (personal)", *cells, f"{personal['best_accuracy']:.2f}")
    return table


def overhead(by_phase: Mapping[str, Mapping[str, float]]) -> str:
    """Format the seconds that each phase over a network took besides computing, and how they were spent."""
    return ", ".join(
        f"{phase} {o['all']:.1f} s (import {o['import']:.1f}, data {o['data']:.1f}, model {o['model']:.1f})"
        for phase, o in by_phase.items()
    )


def overhead_sentence(result: Mapping[str, Any]) -> str | None:
    """Describe the overhead of a network; ``None`` for runs in one process."""
    spent = result.get("overhead_seconds")
    return f"Mean overhead of a phase besides computing: {overhead(spent)}." if spent else None


def disclosed(result: Mapping[str, Any]) -> str:
    """Format the most images that a client disclosed, in total and per sample: ``900 (≤5)``; else empty."""
    found = result.get("disclosed")
    return f"{found['most_images']}\N{NO-BREAK SPACE}(≤{found['per_sample_at_most']:g})" if found else ""


def disclosure_sentence(result: Mapping[str, Any]) -> str | None:
    """Describe how many images clients disclosed; ``None`` for methods that share no images."""
    found = result.get("disclosed")
    if not found:
        return None
    return (
        f"Disclosure of {result['method']}: a client sent at most {found['most_images']} condensed images in this run. "
        f"Counted over all its runs, a client sent at most {found['per_sample_at_most']:g} images of a class "
        "per private sample of that class."
    )


def audit_sentence(result: Mapping[str, Any]) -> str | None:
    """Describe the copy audit; ``None`` for methods that share no images."""
    audit = result.get("copy_audit")
    if not audit:
        return None
    return (
        f"Copy audit of {result['method']}: the similarity of a shared image to the nearest private image "
        f"(PSNR, higher is closer) is {audit['psnr_mean']:.1f} dB on average and at most {audit['psnr_max']:.1f} dB. "
        f"For real images among each other it is {audit['held_out_psnr_mean']:.1f} and "
        f"{audit['held_out_psnr_max']:.1f} dB. For {100 * audit['from_source']:.0f} % of the shared images the nearest "
        f"private image is one they were made from ({100 * audit['held_out_from_source']:.0f} % by chance)."
    )
