"""The report: every table of the paper with our measurements, made from the folder of finished runs alone."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedaf.common.files import write_atomically
from fedaf.data import catalog
from fedaf.data.registry import spec_of
from fedaf.reporting import comparison, figures
from fedaf.reporting.comparison import Row
from fedaf.reproduce.archive import Archive, Conditions, Run
from fedaf.reproduce.cells import Cell, Line, Section, Table, shown
from fedaf.reproduce.tables import FEATURE_SKEW, SEEDS, TARGET, tables

REPORT, PICTURES = "RESULTS.md", "results"

#: Tables with learning curves, and the fewest rows to draw: a single curve of ``ipc`` is in another table.
_FEWEST_CURVES = {"label-skew": 1, "feature-skew": 1, "ipc": 2}

#: What was different in earlier versions of methods, for the runs that are still shown.
_EARLIER = {
    (method, 1): "before the BatchNorm statistics of the first model were estimated (round 1 was hardly useful)"
    for method in ("fedaf", "feddm")
} | {("fedaf-plus", 2): "before the server drew images of larger classes more often (server_weighting)"}


class Report:
    """The content of the report. Its prose is in ``templates/report.md.j2``."""

    def __init__(self, archive: Archive, made: Sequence[Table], docs: Path) -> None:
        self.archive, self.tables, self.docs = archive, made, docs
        self.pictures = docs / PICTURES
        self.cells = list(dict.fromkeys(cell for table in made for cell in table.cells))

    def rows(self, line: Line) -> list[Row]:
        """The runs of a line as rows of a table: one row, or one for each set of conditions if there are several.

        The label names the version of the method if it is not the current one, and all conditions if there are several
        for one version.
        """
        groups: dict[Conditions, list[Run]] = {}
        for cell in line.cells:
            for run in self.archive.all_of(cell):
                groups.setdefault(run.conditions, []).append(run)
        ordered = sorted(groups.items(), key=lambda group: (not group[1][0].is_current, -len(group[1]), group[0]))
        versions = Counter(conditions.method_version for conditions in groups)

        def label(conditions: Conditions, runs: Sequence[Run]) -> str:
            if versions[conditions.method_version] > 1:
                return f"{line.label} ({conditions})"
            return line.label if runs[0].is_current else f"{line.label} (version {conditions.method_version})"

        named = [(label(*group), group[1]) for group in ordered] or [(line.label, [])]
        return [Row(name, [run.figures for run in runs], line.paper, line.paper_by_domain) for name, runs in named]

    def text(self) -> str:
        pages = Environment(loader=PackageLoader("fedaf.reproduce"), undefined=StrictUndefined, trim_blocks=True)
        drawn = [self.pictures / f"tsne-{name}.png" for name in FEATURE_SKEW]
        text = pages.get_template("report.md.j2").render(
            results=self.archive.folder.absolute().name,
            finished=sum(self.archive.find(cell) is not None for cell in self.cells),
            all=len(self.cells),
            earlier=self._earlier(),
            tables=[(table, list(self._sections(table))) for table in self.tables],
            domains=[self._shown(path, f"t-SNE of features, {path.stem}") for path in drawn if path.is_file()],
            runs=self._runs(),
            not_counted=self._not_counted(),
            open=self._open(),
            mismatches=self._mismatches(),
        )
        return f"{text}\n"

    def _sections(self, table: Table) -> Iterator[str]:
        for section in table.sections:
            if section.title:
                yield f"### {section.title}"
            rows = [row for line in section.lines for row in self.rows(line)]
            match table.measure:
                case "domains":
                    dataset = section.lines[0].cells[0].dataset
                    yield comparison.domains_table(rows, spec_of(dataset).domains)
                case "upload":
                    yield comparison.upload_table(rows)
                case "rounds":
                    yield comparison.rounds_table(rows, TARGET)
                case _:
                    yield comparison.accuracy_table(rows, within=section.within)
            curves = {row.label: [run["curve"] for run in row.runs] for row in rows if row.runs}
            methods = {row.label: line.cells[0].variant for line in section.lines for row in self.rows(line)}
            if table.name in _FEWEST_CURVES and len(curves) >= _FEWEST_CURVES[table.name]:
                path = figures.seed_curves(
                    curves, self.picture(f"curves-{section.name}"), title=section.title, methods=methods
                )
                yield self._shown(path, f"Learning curves, {section.title}")
            if table.name == "label-skew":
                yield from self._split(section)
        if table.name == "ipc":
            yield from self._gains(table)

    def _split(self, section: Section) -> Iterator[str]:
        """Draw the split of the first seed, from any run that kept its counts: it is the same for every method."""
        wanted = section.lines[0].cells[0]
        counts = next((run.counts for run in self.archive.runs if run.counts and run.same_split(wanted)), None)
        if counts:
            title = f"{section.title}, seed {wanted.seed}"
            path = figures.draw_bubbles(counts, self.picture(f"split-{section.name}"), title)
            yield self._shown(path, f"Samples of each class by client, {title}")

    def _gains(self, table: Table) -> Iterator[str]:
        """Draw the difference between a condensing method and FedAvg, seed by seed."""
        gains: dict[str, dict[int, list[float]]] = {}
        for _, line in table.lines:
            for cell in line.cells:
                sizes = gains.setdefault(f"{shown(cell.method)}, alpha {cell.alpha:g}", {})
                ipc = int(dict(cell.options).get("ipc", 50))
                for gain in self._over_fedavg(cell):
                    sizes.setdefault(ipc, []).append(gain)
        gains = {title: sizes for title, sizes in gains.items() if len(sizes) > 1}
        if gains:
            path = figures.gains(gains, self.picture("ipc-gain"), title="FedAF and FedAF+ over FedAvg, CIFAR-10")
            yield self._shown(path, "Gain of FedAF and FedAF+ over FedAvg in points, by images per class")

    def _over_fedavg(self, cell: Cell) -> Iterator[float]:
        """The gain of a cell, if it and FedAvg were run under the same conditions."""
        if ours := self.archive.find(cell):
            computed = {"engine": ours.conditions.engine, "precision": ours.conditions.precision}
            fedavg = self.archive.find(Cell(cell.dataset, cell.alpha, "fedavg", cell.seed), **computed)
            if fedavg:
                yield ours.figures["best_accuracy"] - fedavg.figures["best_accuracy"]

    def _runs(self) -> str:
        lines = []
        for run in (run for cell in self.cells for run in self.archive.all_of(cell)):
            facts = run.figures
            link = f"[{self._name(run)}]({os.path.relpath(run.path, self.docs)})"
            versions = f"{facts['versions']['fedaf']}, torch {facts['versions']['torch']}"
            accuracy = [f"{facts[name]:.2f}" for name in ("best_accuracy", "last_accuracy")]
            measured = [str(facts["seed"]), *accuracy, facts["tested_on"], f"{facts['seconds']:.0f}"]
            lines.append([link, *measured, f"{facts['device']}, {run.conditions}", versions])
        return comparison.markdown(["run", "seed", "best", "last", "on", "seconds", "conditions", "fedaf"], lines)

    def _earlier(self) -> list[str]:
        """Describe the earlier versions of methods whose runs are shown."""
        runs = [run for cell in self.cells for run in self.archive.all_of(cell) if not run.is_current]
        found = sorted({(str(run.figures["method"]), run.conditions.method_version) for run in runs})
        return [f"{shown(name)}, version {v}: {_EARLIER.get((name, v), 'an earlier version')}" for name, v in found]

    def _not_counted(self) -> list[str]:
        others = [
            f"`{self._name(run)}` (best {run.figures['best_accuracy']:.2f}): {how}"
            for run, how in self.archive.others(self.cells)
        ]
        return others + [f"`{path.parent.name}/{path.name}` is damaged" for path in self.archive.damaged]

    def _open(self) -> list[str]:
        by_setting: dict[str, dict[str, list[str]]] = {}
        for cell in self.cells:
            if self.archive.find(cell) is None:
                name = cell.kind.partition("/")[2]
                by_setting.setdefault(cell.setting, {}).setdefault(name, []).append(str(cell.seed))
        return [
            f"{setting}: " + ", ".join(f"{name} ({', '.join(seeds)})" for name, seeds in by_name.items())
            for setting, by_name in by_setting.items()
        ]

    def _mismatches(self) -> list[str]:
        found: dict[tuple[Any, ...], str] = {}  # a row may stand in several tables
        for table in self.tables:
            for section, line, row in ((s, each, row) for s, each in table.lines for row in self.rows(each)):
                how = comparison.mismatch(row, table.measure, within=section.within, target=TARGET)
                if how is not None:
                    seeds = f"{len(row.runs)} seed" + ("s" if len(row.runs) > 1 else "")
                    where = f", {section.title}" if section.title else ""
                    what = (table.measure, section.within, line.paper, line.cells, row.label)
                    found.setdefault(what, f"{row.label}{where}: {how} ({seeds})")
        return list(found.values())

    def picture(self, name: str) -> Path:
        self.pictures.mkdir(parents=True, exist_ok=True)
        return self.pictures / f"{name}.png"

    def _shown(self, path: Path, what: str) -> str:
        return f"![{what}]({path.relative_to(self.docs)})"

    def _name(self, run: Run) -> str:
        return str(run.path.relative_to(self.archive.folder))


def render(
    results: Path,
    docs: Path,
    *,
    made: Sequence[Table] | None = None,
    data_dir: Path | None = None,
    device: str = "auto",
    features: str | None = None,
) -> list[str]:
    """Write the report and its figures.

    Args:
        results: Folder of finished runs.
        docs: Folder of the report.
        made: The tables; by default all.
        data_dir: Folder of the data sets, for t-SNE of domains; without it these figures stay as they are.
        device: Where the network for t-SNE is trained.
        features: ``module:factory`` of a network to use instead.

    Returns:
        Lines for the terminal.
    """
    report = Report(Archive(results), made if made is not None else list(tables(SEEDS).values()), docs)
    docs.mkdir(parents=True, exist_ok=True)
    pictures = [(name, report.picture(f"tsne-{name}")) for name in FEATURE_SKEW]
    drawn = [_draw_domains(name, path, data_dir, device, features) for name, path in pictures]
    write_atomically(docs / REPORT, report.text())
    where = f"The report is {docs / REPORT}; its figures are in {report.pictures}."
    return [*report.archive.damaged.values(), *drawn, where]


def _draw_domains(name: str, path: Path, data_dir: Path | None, device: str, features: str | None) -> str:
    if data_dir is None or catalog.locate(name, data_dir) is None:
        kept = "was not changed" if path.is_file() else "was not drawn"
        why = "no --data-dir was given" if data_dir is None else f"{shown(name)} is not in {data_dir}"
        return f"{path.name} {kept}, because {why}."
    from fedaf.reproduce.domain_features import domain_map

    points, domains, names = domain_map(name, data_dir, device=device, backbone=features)
    figures.scatter(points, domains, names, path, title=f"features of {shown(name)} by domain")
    return f"{path.name} was drawn."
