"""What the finished runs of a sweep show: one table with means over seeds and paired differences.

The files have no times in them. A sweep that was stopped and continued writes the same bytes as one that was not.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedaf.common.files import write_atomically
from fedaf.reporting import differences as paired
from fedaf.reporting.differences import Compared, Measure
from fedaf.reporting.statistics import deviation, mean_and_deviation
from fedaf.reporting.tables import new_table, size
from fedaf.sweep.grid import METHOD, SEED, Grid, GridCell

TABLE, RUNS, SUMMARY = "sweep.csv", "runs.csv", "summary.json"

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Findings:
    """The results of the finished cells of a grid.

    Args:
        grid: The grid.
        figures: The content of ``result.json`` of every finished cell.
    """

    grid: Grid
    figures: Mapping[GridCell, Figures]

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[Figures]]:
        """The results of every setting and variant that has some, one per seed, in the order of the grid."""
        found = {
            key: [self._figures(cell) for cell in cells if cell in self.figures]
            for key, cells in self.grid.rows.items()
        }
        return {key: results for key, results in found.items() if results}

    def _figures(self, cell: GridCell) -> Figures:
        """The results of a cell, with its variant in the place of the method."""
        return {**self.figures[cell], "method": cell.variant}

    @cached_property
    def measures(self) -> list[Measure]:
        """The figures to compare that at least one run has."""
        known = paired.measures(self.grid.metrics)
        return [one for one in known if any(one.read(figures) is not None for figures in self.figures.values())]

    @cached_property
    def by_setting(self) -> dict[str, list[Figures]]:
        """The results of all variants, by setting."""
        found: dict[str, list[Figures]] = {}
        for (setting, _), results in self.rows.items():
            found.setdefault(setting, []).extend(results)
        return found

    @cached_property
    def differences(self) -> dict[str, list[Compared]]:
        """Compare every variant with that of ``against``, seed by seed within each setting."""
        return {
            setting: paired.differences(results, self.grid.against, self.measures)
            for setting, results in self.by_setting.items()
            if any(one["method"] == self.grid.against for one in results)
        }

    @property
    def conditions(self) -> list[str]:
        """What computed the runs: engine and precision."""
        return sorted({f"{one.get('engine')}, {one.get('precision')}" for one in self.figures.values()})

    def results_table(self) -> Table:
        """Show the mean and the sample standard deviation over seeds of every row."""
        measures = self.measures
        title = f"{len(self.figures)} of {len(self.grid.cells)} runs, mean and deviation over seeds"
        headers = ["run", *(one.title for one in measures), "seeds", "up / client / round"]
        table = new_table(title, headers)
        for (setting, variant), results in self.rows.items():
            means = (mean_and_deviation(list(one.by_seed(results).values()), one.digits) for one in measures)
            sent = [one["upload_bytes_per_client_round"] for one in results]
            upload = size(fmean(known)) if (known := [each for each in sent if each is not None]) else ""
            table.add_row(escape(_label(variant, setting)), *means, str(len(results)), upload)
        return table

    def differences_table(self) -> Table | None:
        """Show the paired differences of all settings; ``None`` if there is only one seed or variant."""
        named = [
            replace(one, method=_label(one.method, setting))
            for setting, compared in self.differences.items()
            for one in compared
        ]
        return paired.differences_table(named)

    def write(self, out: Path) -> list[str]:
        """Write the files for other programs into the folder of the sweep, and return their names."""
        for name, content in ((TABLE, self._table()), (RUNS, self._runs()), (SUMMARY, self._summary())):
            write_atomically(out / name, content)
        return [TABLE, RUNS, SUMMARY]

    def _table(self) -> str:
        """One line for each row: its values, the mean and deviation of each figure, and the difference."""
        compared = {
            (setting, one.method, one.measure.name): one for setting, found in self.differences.items() for one in found
        }
        lines = []
        for (setting, variant), results in self.rows.items():
            cell = self.grid.rows[setting, variant][0]
            line = {"method": cell.config.method_name, **self._values(cell), "seeds": len(results)}
            for measure in self.measures:
                values, name = list(measure.by_seed(results).values()), measure.name
                line |= {f"{name}_mean": fmean(values) if values else None, f"{name}_deviation": deviation(values)}
                found = compared.get((setting, variant, name))
                for part in ("mean", "low", "high"):
                    label = "difference" if part == "mean" else f"difference_{part}"
                    line[f"{name}_{label}"] = None if found is None else getattr(found.difference, part)
                line[f"{name}_verdict"] = None if found is None else str(found.verdict)
            lines.append(line)
        return _csv(lines)

    def _runs(self) -> str:
        """One line for each run: its values and all its figures but the seconds."""
        cells = [cell for row in self.grid.rows.values() for cell in row if cell in self.figures]
        figures = paired.as_rows([self.figures[cell] for cell in cells])
        lines = []
        for cell, found in zip(cells, figures, strict=True):
            kept = {name: value for name, value in found.items() if name != "seconds"}
            lines.append({"run": cell.directory, **self._values(cell), **kept})
        return _csv(lines)

    def _summary(self) -> str:
        compared = self.differences
        settings = [
            {"setting": setting, **paired.as_json(results, compared.get(setting, []), self.measures)}
            for setting, results in self.by_setting.items()
        ]
        counted = {"planned": len(self.grid.cells), "finished": len(self.figures)}
        found = {"runs": counted, "computed_by": self.conditions, "against": self.grid.against, "settings": settings}
        return json.dumps(found, indent=2) + "\n"

    def _values(self, cell: GridCell) -> dict[str, Any]:
        """The values of a cell that vary, but method and seed; those that do not apply are empty."""
        return {path: cell.values.get(path) for path in self.grid.paths if path not in (METHOD, SEED)}


def _label(variant: str, setting: str) -> str:
    return ", ".join(part for part in (variant, setting) if part)


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()
