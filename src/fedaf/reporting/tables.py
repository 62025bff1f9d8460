"""Tables for a terminal."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median_low
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from fedaf.data.partition import client_id
from fedaf.data.spec import NO_DATA
from fedaf.reporting.statistics import mean_and_deviation, mean_curve
from fedaf.reporting.targets import Target

_MOST_ROWS = 20
MOST_COLUMNS = 12  # of class counts; more do not fit in 80 characters

Result = Mapping[str, Any]
#: The results of one method, one per seed.
Runs = Sequence[Result]


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


def new_table(title: str, headers: Sequence[str], *, compact: bool = False) -> Table:
    """Return a table with all columns but the first aligned right; no cell is wrapped."""
    style: dict[str, Any] = {"box": SIMPLE, "padding": (0, 1, 0, 0)} if compact else {}
    table = Table(title=escape(title), title_justify="left", **style)
    table.add_column(escape(headers[0]), no_wrap=True)
    for header in headers[1:]:
        table.add_column(escape(header), justify="right", no_wrap=True)
    return table


def partition_table(counts: Mapping[str, Sequence[int]]) -> Table:
    """Show the samples per class of each client, or the number of classes it holds if there are many."""
    classes = len(next(iter(counts.values())))
    headers = [str(c) for c in range(classes)] if classes <= MOST_COLUMNS else ["classes held"]
    table = new_table("Samples per class of each client", ["client", *headers, "total"], compact=True)
    for client, row in counts.items():
        held = [str(n) if n else "·" for n in row] if classes <= MOST_COLUMNS else [str(sum(n > 0 for n in row))]
        table.add_row(escape(client), *held, str(sum(row)))
    return table


def counts_table(kind: str, train: Sequence[int], test: Sequence[int], names: Sequence[str]) -> Table:
    """Show the samples of each class or other ``kind``; if there are many, only the fewest, the median and the most."""
    table = new_table(f"Samples per {kind}", [kind, "train", "test"], compact=True)
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


#: The columns after the method, in order: the header, and the cell of a method's runs. A new column is one line.
_COLUMNS: tuple[tuple[str, Callable[[Runs], str]], ...] = (
    ("best test round %", lambda runs: _accuracy(run["best_accuracy"] for run in runs)),
    ("last %", lambda runs: _accuracy(run["last_accuracy"] for run in runs)),
    ("up / client / round", lambda runs: _bytes(run["upload_bytes_per_client_round"] for run in runs)),
    ("down / client / round", lambda runs: _bytes(run["download_bytes_per_client_round"] for run in runs)),
    ("time", lambda runs: duration(fmean(run["seconds"] for run in runs))),
)
_SPLITS = {"domain": "one client per domain"}
_NOTHING = "\N{EN DASH}"  # of a figure that does not apply


def by_method(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results of each method, in the order in which they first appear."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result["method"], []).append(result)
    return found


def results_table(results: Sequence[Result], *, target: Target | None = None) -> Table:
    """Compare methods: accuracy, rounds until it reaches ``target``, bytes per client and round, time, disclosure.

    With several seeds, accuracies are the mean and the sample standard deviation, rounds are those of the mean curve,
    bytes and time are means, and the disclosure is the largest.

    Args:
        results: The contents of ``result.json`` of each run.
        target: What to reach; by default the highest accuracy in whole per cent that all methods but references reach.
    """
    methods = by_method(results)
    columns = list(_COLUMNS)
    if any(result.get("selected_round") for result in results):
        columns.insert(2, ("selected round %", lambda runs: _accuracy(run.get("selected_accuracy") for run in runs)))
    if len(methods) > 1 or target is not None:
        goal = target or Target(_reached_by_all(methods))
        columns.insert(2, (goal.header, goal.rounds))
    if len(methods) > 1 and any(result.get("disclosed") for result in results):
        columns.append(("images sent (per sample)", disclosed))
    table = new_table(title_of(results), ["method", *(header for header, _ in columns)])
    for method, runs in methods.items():
        name = escape(method)
        table.add_row(name, *(cell(runs) for _, cell in columns))
        if has_personal_row(runs[0]):
            accuracy = (_accuracy(run["personal"][f"{which}_accuracy"] for run in runs) for which in ("best", "last"))
            table.add_row(f"{name} (personal)", *accuracy, *("" for _ in columns[2:]))
    return table


def has_personal_row(result: Result) -> bool:
    """Whether a method has personal models besides a global one. Without one, its only row is already of these."""
    return bool(result.get("personal")) and bool(result.get("global_model", True))  # unknown of older runs


def _reached_by_all(methods: Mapping[str, Runs]) -> int:
    """Return the highest whole per cent that the mean curve of every method reaches; of references, if all are."""
    ranked = [runs for runs in methods.values() if not runs[0].get("reference")] or list(methods.values())
    return math.floor(min(max((accuracy or 0 for accuracy in _curve(runs)), default=0) for runs in ranked))


def _curve(runs: Runs) -> list[float | None]:
    return mean_curve([run["curve"] for run in runs])


def _accuracy(values: Iterable[float | None]) -> str:
    """Format accuracies over seeds; unknown if one of them is."""
    found = list(values)
    known = [value for value in found if value is not None]
    return mean_and_deviation(known) if len(known) == len(found) else "unknown"


def _bytes(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return size(fmean(known)) if known else _NOTHING


def title_of(results: Sequence[Result]) -> str:
    """Return the setting of runs, for example ``digits, 10 clients, Dirichlet 0.02, 10 rounds, seed 0``."""
    return ", ".join([*setting_of(results[0]), counted(results[0]["rounds"], "round"), seeds_of(results)])


def seeds_of(results: Sequence[Result]) -> str:
    """Return ``seed 0``, or the number of seeds of runs."""
    seeds = list(dict.fromkeys(one["seed"] for one in results))
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds"


def setting_of(result: Result) -> list[str]:
    """Return the data set of a run, its number of clients and its split, for people."""
    clients = counted(result["clients"], "client")
    split = f"Dirichlet {result['alpha']:g}" if result["alpha"] is not None else result["partition"]
    if result["dataset"] == NO_DATA:  # clients brought their data, so there was no split
        return ["own data", clients]
    return [result["dataset"], clients, _SPLITS.get(split, split)]


def counted(number: int, what: str) -> str:
    """Return a number with its noun: ``1 round``, ``2 rounds``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def personal_sentence(result: Mapping[str, Any]) -> str | None:
    """Explain the two rows of a method with personal models."""
    if not has_personal_row(result):
        return None
    return (
        f"{result['method']} has no global model. Its first row is the averaged model with averaged BatchNorm layers, "
        "which clients send for this report only. 'personal' is the mean accuracy of the personal models of the "
        "clients of a round, each on its own test data: the test split of its domain, or the whole test split."
    )


_REFERENCES = {
    "pooled": "pooled is central training on all data in one place, which a federation must do without",
    "local": "local is every client alone, without sharing anything. Its accuracy is the mean over clients of each "
    "client's model on the test split of its domain, or on the whole test split",
}


def reference_sentence(result: Result) -> str | None:
    """Explain a row that is a reference; ``None`` for federated methods."""
    if not result.get("reference"):
        return None
    name = result["method"]
    subject = f"{_REFERENCES[name]}. It" if name in _REFERENCES else name
    return f"{subject} is a reference for comparison, not a federated method."


def domains_table(results: Sequence[Result]) -> Table | None:
    """Compare methods on each domain, in their best round; ``None`` for data without domains."""
    domains = next((list(found) for result in results if (found := result.get("best_accuracy_by_domain"))), None)
    if not domains:
        return None
    table = new_table("Accuracy by domain in the best round, per cent", ["method", *domains, "average"])
    for method, runs in by_method(results).items():
        name, with_personal = escape(method), has_personal_row(runs[0])
        if all(run.get("best_accuracy_by_domain") for run in runs):
            cells = [_accuracy(run["best_accuracy_by_domain"][domain] for run in runs) for domain in domains]
            table.add_row(name, *cells, _accuracy(run["best_accuracy"] for run in runs))
        else:  # without a global model
            with_personal = bool(runs[0].get("personal"))
        if with_personal and runs[0]["partition"] == "domain":  # then clients are domains
            cells = [_of_client(runs, client_id(domain)) for domain in domains]
            table.add_row(f"{name} (personal)", *cells, _accuracy(run["personal"]["best_accuracy"] for run in runs))
    return table


def _of_client(runs: Runs, client: str) -> str:
    """The accuracy of a client's personal model; a dot if the client was absent in the best round of some run."""
    own = [run["personal"]["best_by_client"].get(client) for run in runs]
    return "·" if None in own else _accuracy(own)


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


def disclosed(runs: Runs) -> str:
    """Format the most images that a client disclosed, in total and per sample: ``900 (≤5)``; else empty."""
    found = [run["disclosed"] for run in runs if run.get("disclosed")]
    if not found:
        return ""
    most, per_sample = (max(one[key] for one in found) for key in ("most_images", "per_sample_at_most"))
    return f"{most}\N{NO-BREAK SPACE}(≤{per_sample:g})"


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


def privacy_sentence(result: Mapping[str, Any]) -> str | None:
    """Describe the guarantee of differential privacy; ``None`` for runs without it."""
    privacy = result.get("privacy")
    if not privacy:
        return None
    if privacy["simulated"]:
        return f"{privacy['warning']}. Leave it out for differential privacy with epsilon {privacy['epsilon']:g}."
    return (
        f"What {result['method']} shared has differential privacy: epsilon {privacy['epsilon']:g}, delta "
        f"{privacy['delta']:g} for {privacy['unit']} ({privacy['neighbours']}; if one is replaced: epsilon "
        f"{privacy['replace_one_epsilon']:.3g}).{_spent(privacy)} docs/explanation/differential-privacy.md says what "
        "this promises."
    )


def _spent(privacy: Mapping[str, Any]) -> str:
    """Say what clients have spent in all, if it is more than this run should cost."""
    most = max(privacy.get("spent_epsilon", {}).values(), default=0.0)
    if most <= privacy["epsilon"] * (1 + 1e-6):
        return ""
    return f" Over all runs and interrupted releases of its ledger, a client has spent up to epsilon {most:.3g}."


def audit_sentence(result: Mapping[str, Any]) -> str | None:
    """Describe the copy audit; ``None`` for methods that share no images."""
    audit = result.get("copy_audit")
    if not audit:
        return None
    sentence = (
        f"Copy audit of {result['method']}: the similarity of a shared image to the nearest private image "
        f"(PSNR, higher is closer) is {audit['psnr_mean']:.1f} dB on average and at most {audit['psnr_max']:.1f} dB. "
        f"For real images among each other it is {audit['held_out_psnr_mean']:.1f} and "
        f"{audit['held_out_psnr_max']:.1f} dB. For {100 * audit['from_source']:.0f} % of the shared images the nearest "
        f"private image is one they were made from ({100 * audit['held_out_from_source']:.0f} % by chance)."
    )
    if "copied" not in audit:  # a run from before this was measured
        return sentence
    return (
        f"{sentence} {100 * audit['copied']:.1f} % of the shared images, or a part of them, stand out as similar to a "
        "single private image, also if shifted, mirrored or recoloured (up to 3 % by chance)."
    )
