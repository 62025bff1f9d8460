"""Find finished runs, and write their report."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedaf.errors import UserError
from fedaf.federation.run_directory import CONFIG, METRICS, RESULT
from fedaf.reporting.figures import read_result
from fedaf.reporting.html import REPORT, write_report
from fedaf.runs.comparison import COMPARISON


def report(
    runs: Sequence[str | Path] | str | Path,
    out: str | Path | None = None,
    *,
    title: str | None = None,
    against: str | None = None,
) -> Path:
    """Write the report of finished runs as one HTML file that needs nothing else.

    Runs that differ only in their seed are averaged; their curves have a band.

    Args:
        runs: Run directories, directories of comparisons, or folders that hold runs; one or several.
        out: The file. (default: ``report.html`` in the directory, or in the current one if several are given)
        title: The title. (default: methods and data of the runs)
        against: Method that the others are compared with. (default: that of the comparison, else the first one)

    Returns:
        The file.

    Raises:
        UserError: A directory holds no finished run, a ``result.json`` is damaged, no run is of the method
            ``against``, or the file cannot be written there.

    Example:
        >>> fedaf.report("runs/demo")
        >>> fedaf.report(["runs/first", "runs/second"], "both.html", against="fedavg")
    """
    places = [Path(runs)] if isinstance(runs, str | Path) else [Path(each) for each in runs]
    target = Path(out) if out is not None else places[0] / REPORT if len(places) == 1 else Path(REPORT)
    found = list(dict.fromkeys(run for place in places for run in finished_runs(place)))
    if target.is_dir() or (target.exists() and target.name in (CONFIG, METRICS, RESULT)):
        what = f"the report cannot be written to {target}; give the name of a new file, such as {REPORT}."
        raise UserError(what, code="FEDAF-REPORT-FILE")
    return write_report(found, target, title=title, against=against or _planned_against(places, found))


def finished_runs(place: Path) -> list[Path]:
    """Return the finished runs in a directory: itself, those of its comparison in order, or all below it.

    Raises:
        UserError: There is none.
    """
    if not place.is_dir():
        what = f"{place} is not a directory" if place.exists() else f"there is no directory {place}"
        raise UserError(f"{what}; name run directories, such as runs/demo.", code="FEDAF-REPORT-NO-RUNS")
    if (place / RESULT).is_file():
        return [place]
    found = list(_below(place))
    if not found:
        begun = (place / CONFIG).is_file()
        advice = f"finish it with fedaf run --resume {place}" if begun else "name a directory that fedaf run wrote"
        what = "is a run that is not finished" if begun else "holds no finished run"
        raise UserError(f"{place} {what}; {advice}.", code="FEDAF-REPORT-NO-RUNS")
    planned = [place / name for name in _plan(place).get("runs", ())]
    return [*(run for run in planned if run in found), *(run for run in found if run not in planned)]


def _below(place: Path) -> Iterator[Path]:
    """Yield the run directories below a folder, by name. Hidden folders are left out: they are being moved."""
    for folder, names, files in os.walk(place):
        if RESULT in files:
            names.clear()
            yield Path(folder)
        names[:] = sorted(name for name in names if not name.startswith("."))


def _plan(place: Path) -> dict[str, Any]:
    """Return the plan of a comparison as it is stored; nothing if there is none or it cannot be read."""
    try:
        saved = json.loads((place / COMPARISON).read_bytes())
    except (OSError, ValueError):
        return {}
    is_plan = isinstance(saved, dict) and isinstance(saved.get("runs"), dict)
    return saved if is_plan else {}


def _planned_against(places: Sequence[Path], runs: Sequence[Path]) -> str | None:
    """Return the method that a comparison was planned to compare with, if a run of it is finished."""
    planned = [_plan(place).get("against") for place in places]
    methods = {read_result(run)["method"] for run in runs} if any(planned) else set()
    return next((named for named in planned if named in methods), None)
