"""Measured results compared with the paper's, as Markdown: one row per method or variant."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedaf.reporting.statistics import mean_and_deviation, mean_curve
from fedaf.reporting.targets import rounds_to

MIB = 1 << 20
_AUDITED: Mapping[str, Callable[[Iterable[float]], float]] = {
    "psnr_mean": max,
    "psnr_max": max,
    "from_source": max,
    "held_out_psnr_mean": fmean,
    "held_out_psnr_max": max,
    "held_out_from_source": fmean,
}
_COMPARED = ("", "paper", "measured", "seeds", "difference")

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One row of a table: the results of one run per seed, and the paper's mean and standard deviation."""

    label: str
    runs: Sequence[Figures]
    paper: tuple[float, float | None] | None = None
    paper_by_domain: Mapping[str, float] | None = None

    @property
    def uploads(self) -> list[float]:
        """MiB per client and round, by run."""
        return [run["upload_bytes_per_client_round"] / MIB for run in self.runs]

    @property
    def mean_curve(self) -> list[float | None]:
        """The accuracy by round, averaged over runs."""
        return mean_curve([run["curve"] for run in self.runs])

    @property
    def personal(self) -> list[float]:
        """The best accuracies of personal models, of the runs that have them."""
        return [run["personal"]["best_accuracy"] for run in self.runs if run.get("personal")]


def best(run: Figures, within: int | None = None) -> float:
    """Return the best accuracy of a run, or of its first ``within`` rounds."""
    return float(max(run["curve"][:within]))


def last_five(run: Figures, within: int | None = None) -> float:
    """Return the mean accuracy of the last five rounds, or of all if there are fewer."""
    return fmean(run["curve"][:within][-5:])


def accuracy_table(rows: Sequence[Row], *, within: int | None = None) -> str:
    """Compare the best accuracy with the paper's; with that of the last rounds, upload and copy audit."""
    lines = []
    for row in rows:
        late = [mean_and_deviation([last_five(run, within) for run in row.runs])]
        late.append(mean_and_deviation([run["curve"][:within][-1] for run in row.runs]))
        upload = f"{fmean(row.uploads):.2f}" if row.runs else ""
        compared = _compared(row, [best(run, within) for run in row.runs])
        lines.append([*compared, *late, upload, audit(row.runs)])
        if personal := row.personal:
            lines.append(
                [
                    f"{row.label}, personal models",
                    "",
                    mean_and_deviation(personal),
                    _count(personal),
                    "",
                    "",
                    "",
                    "",
                    "",
                ]
            )
    headers = [*_COMPARED, "last five rounds", "last round", "upload, MiB", "copy audit"]
    if not any(row.paper for row in rows):  # neither the paper's column nor the difference
        headers, *lines = ([line[0], *line[2:4], *line[5:]] for line in (headers, *lines))
    return markdown(headers, lines)


def domains_table(rows: Sequence[Row], domains: Sequence[str]) -> str:
    """Compare the accuracy by domain, in the round with the best average, with the paper's where there is one.

    The average of the last five rounds has a column of its own.
    """
    columns, blank = [*domains, "average"], [""] * len(domains)
    lines = []
    for row in rows:
        paper = row.paper_by_domain
        if paper:
            lines.append([f"{row.label}, paper", *(f"{paper[name]:.2f}" for name in columns), "", "", ""])
        found = [{**run["best_accuracy_by_domain"], "average": run["best_accuracy"]} for run in row.runs]
        values = {name: [run[name] for run in found] for name in columns}
        measured = [mean_and_deviation(values[name]) for name in columns]
        label = f"{row.label}, measured" if paper else row.label
        lines.append(
            [label, *measured, mean_and_deviation([last_five(run) for run in row.runs]), _count(found), audit(row.runs)]
        )
        if paper and found:
            differences = [f"{fmean(values[name]) - paper[name]:+.2f}" for name in columns]
            lines.append([f"{row.label}, difference", *differences, "", "", ""])
        if personal := row.personal:
            lines.append(
                [f"{row.label}, personal models", *blank, mean_and_deviation(personal), "", _count(personal), ""]
            )
    return markdown(["", *columns, "average, last five rounds", "seeds", "copy audit"], lines)


def upload_table(rows: Sequence[Row]) -> str:
    """Compare the upload per client and round in MiB with the paper's."""
    return markdown(_COMPARED, [_compared(row, row.uploads) for row in rows])


def rounds_table(rows: Sequence[Row], target: float) -> str:
    """Compare the rounds until the mean curve over seeds reaches ``target`` with the paper's."""
    lines = []
    for row in rows:
        reached = rounds_to(row.mean_curve, target) if row.runs else ""
        paper = "" if row.paper is None else f"{row.paper[0]:g}"
        lines.append([row.label, paper, reached, _count(row.runs)])
    return markdown(["", "paper", "measured", "seeds"], lines)


def mismatch(row: Row, measure: str, *, within: int | None = None, target: float = 0.0) -> str | None:
    """Describe the difference to the paper if it is large, else return ``None``.

    Large means: more than twice the paper's standard deviation for an accuracy (two points if it gives none), more than
    a tenth for an upload, and any difference for rounds to a target.
    """
    paper = row.paper
    if measure == "domains" and row.paper_by_domain:
        paper = (row.paper_by_domain["average"], None)
    if not row.runs or paper is None:
        return None
    mean, std = paper
    if measure == "rounds":
        reached = rounds_to(row.mean_curve, target)
        return f"{reached}, not {mean:g} rounds to {target:g} %" if reached != f"{mean:g}" else None
    if measure == "upload":
        difference = fmean(row.uploads) - mean
        return f"{difference:+.2f} MiB" if abs(difference) > mean / 10 else None
    difference = fmean(best(run, within) for run in row.runs) - mean
    return f"{difference:+.2f}" if abs(difference) > 2 * (1.0 if std is None else std) else None


def audit(runs: Sequence[Figures]) -> str:
    """Format the worst copy audit over runs, with the mean baseline; empty for methods that share no images."""
    audits = [run["copy_audit"] for run in runs if run.get("copy_audit")]
    if not audits:
        return ""
    worst = {name: over(audit[name] for audit in audits) for name, over in _AUDITED.items()}
    copied = [audit["copied"] for audit in audits if "copied" in audit]  # older runs do not have it
    return (
        f"{worst['psnr_mean']:.1f} / {worst['psnr_max']:.1f} dB, {100 * worst['from_source']:.0f} % "
        f"({worst['held_out_psnr_mean']:.1f} / {worst['held_out_psnr_max']:.1f} dB, "
        f"{100 * worst['held_out_from_source']:.0f} %)" + (f", copied {100 * max(copied):.1f} %" if copied else "")
    )


def markdown(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with all columns but the first aligned right."""
    rules = ["---", *("---:" for _ in headers[1:])]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in (headers, rules, *lines)
    )


def _compared(row: Row, values: Sequence[float]) -> list[str]:
    """The columns ``_COMPARED`` of a row."""
    printed = difference = ""
    if row.paper is not None:
        mean, std = row.paper
        printed = f"{mean:.2f}" + ("" if std is None else f" ± {std:.2f}")
        difference = f"{fmean(values) - mean:+.2f}" if values else ""
    return [row.label, printed, mean_and_deviation(values), _count(values), difference]


def _count(values: Sequence[Any]) -> str:
    return str(len(values)) if values else ""
