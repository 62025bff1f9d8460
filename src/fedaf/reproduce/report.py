"""The report: every table of the paper with our measurements, made from the folder of finished runs alone."""

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedaf.common.files import write_atomically
from fedaf.data import catalog
from fedaf.data.registry import DATASETS
from fedaf.reporting import comparison, figures, paper_figures
from fedaf.reporting.comparison import Row
from fedaf.reproduce.archive import Archive, Conditions, Run
from fedaf.reproduce.cells import Cell, Line, Section, Table, shown
from fedaf.reproduce.tables import FEATURE_SKEW, SEEDS, TARGET, tables

REPORT, PICTURES = "RESULTS.md", "results"

_INTRO = """\
This page is written by `fedaf reproduce --render` from the runs in `{results}`. Do not edit it by hand.

Every number comes from a run in the repository; the list below has the seed, version and seconds of each. Accuracy is
in per cent on the test split: of the best round, as in the paper, and of the last round. *Measured* is the mean over
seeds, ± the sample standard deviation if there are several. *Difference* is measured minus paper. An empty cell was not
run. Settings are the paper's where it states them, except that LGKM starts in round 2 and uses mini-batches. Choices
that the paper leaves open were tuned on held-out training images (see the table *Settings*, and the last section for
runs that were not kept). Augmentation is the same for all methods: on, except on FashionMNIST, where it is off. *Copy
audit*: the similarity of the shared images to the nearest private image of their client (PSNR, mean / highest; higher
is closer), and how often the nearest image is one they were made from; the worst over rounds and seeds. The values in
brackets are for real images that were held out.

{there} of {all} runs are finished.
"""

_OF_RUNS = """\
Runs called *upload* only count bytes: their models are hardly trained, and their accuracy means nothing. Seconds are
those of the whole run. Most runs shared the GPU with others; [BENCHMARKS.md](BENCHMARKS.md) has the time of a run that
has the GPU to itself. *Conditions*: device, engine, precision, and the version of the method,
which is raised when its numbers change. Runs under different conditions have rows of their own in the tables.
"""


class Report:
    """The report while it is written. ``messages`` collects lines for the terminal."""

    def __init__(self, archive: Archive, made: Sequence[Table], docs: Path) -> None:
        self.archive, self.tables, self.docs = archive, made, docs
        self.pictures = docs / PICTURES
        self.messages: list[str] = list(archive.damaged.values())

    @property
    def cells(self) -> list[Cell]:
        return list(dict.fromkeys(cell for table in self.tables for cell in table.cells))

    def rows(self, line: Line) -> list[Row]:
        """The runs of a line as rows of a table: one row, or one for each set of conditions if there are several."""
        groups: dict[Conditions, list[Run]] = {}
        for cell in line.cells:
            for run in self.archive.all_of(cell):
                groups.setdefault(run.conditions, []).append(run)
        if len(groups) < 2:
            found = [run.figures for runs in groups.values() for run in runs]
            return [Row(line.label, found, line.paper, line.paper_by_domain)]
        ordered = sorted(groups.items(), key=lambda group: (not group[1][0].is_current, -len(group[1]), group[0]))
        return [
            Row(f"{line.label} ({conditions})", [run.figures for run in runs], line.paper, line.paper_by_domain)
            for conditions, runs in ordered
        ]

    def text(self) -> str:
        results = os.path.relpath(self.archive.folder, self.docs)
        there = sum(self.archive.find(cell) is not None for cell in self.cells)
        intro = _INTRO.format(results=Path(results).name, there=there, all=len(self.cells))
        parts = ["# Results compared with the paper", intro]
        for table in self.tables:
            parts += [f"## {table.title}", table.note, *self._sections(table)]
        parts += self._domains_drawn()
        parts += ["## The runs", _OF_RUNS, self._runs(), *self._not_counted(), *self._open()]
        parts += ["## What does not match the paper, and possible reasons", *self._mismatches()]
        reasons = files("fedaf.reproduce").joinpath("reasons.md").read_text()
        return "\n\n".join(part.strip() for part in [*parts, reasons] if part.strip()) + "\n"

    def _sections(self, table: Table) -> Iterator[str]:
        for section in table.sections:
            if section.title:
                yield f"### {section.title}"
            rows = [row for line in section.lines for row in self.rows(line)]
            match table.measure:
                case "domains":
                    dataset = section.lines[0].cells[0].dataset
                    yield comparison.domains_table(rows, DATASETS.find(dataset).domains)
                case "upload":
                    yield comparison.upload_table(rows)
                case "rounds":
                    yield comparison.rounds_table(rows, TARGET)
                case _:
                    yield comparison.accuracy_table(rows, within=section.within)
            if table.name in ("label-skew", "feature-skew"):
                yield from self._curves(section, rows)
            if table.name == "label-skew":
                yield from self._split(section)
            if table.name == "ipc" and sum(bool(row.runs) for row in rows) > 1:  # one curve is in another table
                yield from self._curves(section, rows)
        if table.name == "ipc":
            yield from self._gain(table)

    def _curves(self, section: Section, rows: Sequence[Row]) -> Iterator[str]:
        drawn = {row.label: [run["curve"] for run in row.runs] for row in rows if row.runs}
        if drawn:
            path = figures.seed_curves(drawn, self.picture(f"curves-{section.name}"), title=section.title)
            yield self._shown(path, f"Learning curves, {section.title}")

    def _split(self, section: Section) -> Iterator[str]:
        """Draw the split of the first seed, from any run that kept its counts: it is the same for every method."""
        wanted = section.lines[0].cells[0]
        for run in self.archive.runs:
            if run.counts and run.same_split(wanted):
                title = f"{section.title}, seed {wanted.seed}"
                path = figures.draw_bubbles(run.counts, self.picture(f"split-{section.name}"), title)
                yield self._shown(path, f"Samples of each class by client, {title}")
                return

    def _gain(self, table: Table) -> Iterator[str]:
        """Draw the difference between FedAF and FedAvg, seed by seed."""
        gains: dict[str, dict[int, list[float]]] = {}
        for section in table.sections:
            by_size: dict[int, list[float]] = {}
            for line in section.lines:
                for cell in line.cells:
                    ours = self.archive.find(cell)
                    if ours is None:
                        continue
                    fedavg = self.archive.find(
                        Cell(cell.dataset, cell.alpha, "fedavg", cell.seed),
                        engine=ours.conditions.engine,
                        precision=ours.conditions.precision,
                    )
                    if fedavg:
                        size = int(dict(cell.options).get("ipc", 50))
                        gain = ours.figures["best_accuracy"] - fedavg.figures["best_accuracy"]
                        by_size.setdefault(size, []).append(gain)
            if len(by_size) > 1:
                gains[section.title] = by_size
        if gains:
            path = paper_figures.gains(gains, self.picture("ipc-gain"), title="FedAF over FedAvg, CIFAR-10")
            yield self._shown(path, "Gain of FedAF over FedAvg in points, by images per class")

    def _domains_drawn(self) -> list[str]:
        paths = [self.pictures / f"tsne-{name}.png" for name in FEATURE_SKEW]
        there = [self._shown(path, f"t-SNE of features, {path.stem}") for path in paths if path.is_file()]
        note = (
            "t-SNE of the features of test images, one colour per domain. The paper uses an ImageNet ResNet50. These "
            "are features of our ConvNet, trained on all domains together, unless another network was given."
        )
        return ["## Features by domain", note, *there] if there else []

    def _runs(self) -> str:
        lines = []
        for run in (run for cell in self.cells for run in self.archive.all_of(cell)):
            facts = run.figures
            link = f"[{self._name(run)}]({os.path.relpath(run.path, self.docs)})"
            versions = f"{facts['versions']['fedaf']}, torch {facts['versions']['torch']}"
            accuracy = [f"{facts[name]:.2f}" for name in ("best_accuracy", "last_accuracy")]
            where = f"{facts['device']}, {run.conditions}"
            lines.append(
                [link, str(facts["seed"]), *accuracy, facts["tested_on"], f"{facts['seconds']:.0f}", where, versions]
            )
        headers = ["run", "seed", "best", "last", "on", "seconds", "conditions", "fedaf"]
        return comparison.markdown(headers, lines)

    def _not_counted(self) -> list[str]:
        lines = [
            f"- `{self._name(run)}` (best {run.figures['best_accuracy']:.2f}): {how}"
            for run, how in self.archive.others(self.cells)
        ]
        lines += [f"- `{path.parent.name}/{path.name}` is damaged" for path in self.archive.damaged]
        return ["## Runs that do not count", "\n".join(lines)] if lines else []

    def _open(self) -> list[str]:
        by_setting: dict[str, dict[str, list[str]]] = {}
        for cell in self.cells:
            if self.archive.find(cell) is None:
                name = cell.kind.partition("/")[2]
                by_setting.setdefault(cell.setting, {}).setdefault(name, []).append(str(cell.seed))
        lines = [
            f"- {setting}: " + ", ".join(f"{name} ({', '.join(seeds)})" for name, seeds in by_name.items())
            for setting, by_name in by_setting.items()
        ]
        return ["## Open cells", "Cells that were not run yet, with their seeds:", "\n".join(lines)] if lines else []

    def _mismatches(self) -> list[str]:
        seen: set[tuple[Any, ...]] = set()  # a row may stand in several tables
        lines = []
        for table in self.tables:
            for section, line, row in ((s, each, row) for s, each in table.lines for row in self.rows(each)):
                how = comparison.mismatch(row, table.measure, within=section.within, target=TARGET)
                what = (table.measure, section.within, line.paper, line.cells, row.label)
                if how is not None and what not in seen:
                    seeds = f"{len(row.runs)} seed" + ("s" if len(row.runs) > 1 else "")
                    where = f", {section.title}" if section.title else ""
                    lines.append(f"- {row.label}{where}: {how} ({seeds})")
                    seen.add(what)
        rule = (
            "Listed are accuracies that differ by more than twice the paper's standard deviation (by two points if it "
            "gives none), uploads that differ by more than a tenth, and rounds that differ at all."
        )
        return [rule, "\n".join(lines)] if lines else []

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
    for name in FEATURE_SKEW:
        report.messages.append(_draw_domains(name, report.picture(f"tsne-{name}"), data_dir, device, features))
    write_atomically(docs / REPORT, report.text())
    return [*report.messages, f"The report is {docs / REPORT}; its figures are in {report.pictures}."]


def _draw_domains(name: str, path: Path, data_dir: Path | None, device: str, features: str | None) -> str:
    if data_dir is None or catalog.locate(name, data_dir) is None:
        kept = "was not changed" if path.is_file() else "was not drawn"
        why = "no --data-dir was given" if data_dir is None else f"{shown(name)} is not in {data_dir}"
        return f"{path.name} {kept}, because {why}."
    from fedaf.reproduce.domain_features import domain_map

    points, domains, names = domain_map(name, data_dir, device=device, backbone=features)
    paper_figures.scatter(points, domains, names, path, title=f"features of {shown(name)} by domain")
    return f"{path.name} was drawn."
