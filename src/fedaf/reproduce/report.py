"""The report: every table of the paper beside what was measured, from the folder of finished runs alone."""

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
from fedaf.reproduce.archive import Archive, Run
from fedaf.reproduce.cells import Cell, Line, Section, Table, shown
from fedaf.reproduce.tables import FEATURE_SKEW, SEEDS, TARGET, tables

REPORT, PICTURES = "RESULTS.md", "results"

_INTRO = """\
Written by `fedaf reproduce --render` from the runs in `{results}`; whatever is changed here by hand is lost.

A figure stands in a table only if the run behind it is in the repository, with its seed, version and seconds (the list
is below). Accuracy is in per cent on the test split, of the best round as in the paper, and of the last one beside it:
*measured* is the mean over the seeds that were run, ± their sample standard deviation where there is more than one.
*Difference* is measured less paper. An empty cell was not run. Settings are the paper's where it states them, but for
LGKM, which starts in round 2 and takes mini-batches; what it leaves open was tried on held-out training images (the
table *Settings*, and at the end what is known from runs that were not kept). Augmentation of training images is on for
every method alike, but on FashionMNIST, where it is off for all. *Copy audit*: likeness of the shared images to the
nearest private image of their client (PSNR, mean / highest; higher is closer), and how often that nearest one is an
image they were made from, at its worst over rounds and seeds; in brackets the same for real images that were held out.

{there} of {all} runs are there.
"""

_OF_RUNS = """\
Those called *upload* only count bytes: their models are hardly trained, and their accuracy means nothing. Seconds are
those of the whole run, which may have shared its device with others, as most of these did: how long a run takes alone
is measured in [BENCHMARKS.md](BENCHMARKS.md).
"""


class Report:
    """A report under way. ``said`` collects what the reader of the terminal should know."""

    def __init__(self, archive: Archive, made: Sequence[Table], docs: Path) -> None:
        self.archive, self.tables, self.docs = archive, made, docs
        self.pictures = docs / PICTURES
        self.said: list[str] = list(archive.damaged.values())

    @property
    def cells(self) -> list[Cell]:
        return list(dict.fromkeys(cell for table in self.tables for cell in table.cells))

    def row(self, line: Line) -> Row:
        runs = [run.figures for run in self.archive.of(line.cells)]
        return Row(line.label, runs, line.paper, line.paper_by_domain)

    def text(self) -> str:
        results = os.path.relpath(self.archive.folder, self.docs)
        there = len(self.archive.of(self.cells))
        intro = _INTRO.format(results=Path(results).name, there=there, all=len(self.cells))
        parts = ["# Results beside the paper's", intro]
        for table in self.tables:
            parts += [f"## {table.title}", table.note, *self._sections(table)]
        parts += self._domains_drawn()
        parts += ["## The runs", _OF_RUNS, self._runs(), *self._not_counted(), *self._open()]
        parts += ["## What does not match the paper, and why we think so", *self._mismatches()]
        reasons = files("fedaf.reproduce").joinpath("reasons.md").read_text()
        return "\n\n".join(part.strip() for part in [*parts, reasons] if part.strip()) + "\n"

    def _sections(self, table: Table) -> Iterator[str]:
        for section in table.sections:
            if section.title:
                yield f"### {section.title}"
            rows = [self.row(line) for line in section.lines]
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
            path = paper_figures.seed_curves(drawn, self.picture(f"curves-{section.name}"), title=section.title)
            yield self._shown(path, f"Learning curves, {section.title}")

    def _split(self, section: Section) -> Iterator[str]:
        """Who holds what with the first seed: the same for every method, so any run that kept its counts will do."""
        wanted = section.lines[0].cells[0]
        for run in self.archive.runs:
            if run.counts and run.same_split(wanted):
                title = f"{section.title}, seed {wanted.seed}"
                path = figures.draw_bubbles(run.counts, self.picture(f"split-{section.name}"), title)
                yield self._shown(path, f"Samples of each class by client, {title}")
                return

    def _gain(self, table: Table) -> Iterator[str]:
        """FedAF less FedAvg, seed by seed."""
        gains: dict[str, dict[int, list[float]]] = {}
        for section in table.sections:
            by_size: dict[int, list[float]] = {}
            for line in section.lines:
                for cell in line.cells:
                    ours = self.archive.find(cell)
                    fedavg = self.archive.find(Cell(cell.dataset, cell.alpha, "fedavg", cell.seed))
                    if ours and fedavg:
                        size = int(dict(cell.options).get("ipc", 50))
                        gain = ours.figures["best_accuracy"] - fedavg.figures["best_accuracy"]
                        by_size.setdefault(size, []).append(gain)
            if len(by_size) > 1:
                gains[section.title] = by_size
        if gains:
            path = paper_figures.gains(gains, self.picture("ipc-gain"), title="FedAF over FedAvg, CIFAR-10")
            yield self._shown(path, "Points that FedAF wins over FedAvg, by images per class")

    def _domains_drawn(self) -> list[str]:
        paths = [self.pictures / f"tsne-{name}.png" for name in FEATURE_SKEW]
        there = [self._shown(path, f"t-SNE of features, {path.stem}") for path in paths if path.is_file()]
        note = (
            "t-SNE of features of test images, a colour for each domain. The paper takes an ImageNet ResNet50; these "
            "are features of our ConvNet, trained on all domains together, unless a network was named."
        )
        return ["## Features by domain", note, *there] if there else []

    def _runs(self) -> str:
        lines = []
        for cell in self.cells:
            run = self.archive.find(cell)
            if run is None:
                continue
            facts = run.figures
            link = f"[{self._name(run)}]({os.path.relpath(run.path, self.docs)})"
            versions = f"{facts['versions']['fedaf']}, torch {facts['versions']['torch']}"
            accuracy = [f"{facts[name]:.2f}" for name in ("best_accuracy", "last_accuracy")]
            where = ", ".join(facts[name] for name in ("device", "engine", "precision") if name in facts)
            lines.append(
                [link, str(facts["seed"]), *accuracy, facts["tested_on"], f"{facts['seconds']:.0f}", where, versions]
            )
        headers = ["run", "seed", "best", "last", "on", "seconds", "device, engine, precision", "fedaf"]
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
        return ["## Open cells", "Not run yet, with their seeds:", "\n".join(lines)] if lines else []

    def _mismatches(self) -> list[str]:
        seen: set[tuple[Any, ...]] = set()  # a row may stand in several tables
        lines = []
        for table in self.tables:
            for section, line in table.lines:
                row = self.row(line)
                how = comparison.mismatch(row, table.measure, within=section.within, target=TARGET)
                what = (table.measure, section.within, line.paper, line.cells)
                if how is not None and what not in seen:
                    seeds = f"{len(row.runs)} seed" + ("s" if len(row.runs) > 1 else "")
                    where = f", {section.title}" if section.title else ""
                    lines.append(f"- {line.label}{where}: {how} ({seeds})")
                    seen.add(what)
        rule = (
            "Too far from the paper: accuracy by more than twice its standard deviation (by two points where it gives "
            "none), uploads by more than a tenth, rounds by any."
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
    """Write the report and its pictures into ``docs``, and return what to tell about it. Only t-SNE needs data: without
    ``data_dir`` its pictures stay as they are."""
    report = Report(Archive(results), made if made is not None else list(tables(SEEDS).values()), docs)
    docs.mkdir(parents=True, exist_ok=True)
    for name in FEATURE_SKEW:
        report.said.append(_draw_domains(name, report.picture(f"tsne-{name}"), data_dir, device, features))
    write_atomically(docs / REPORT, report.text())
    return [*report.said, f"The report is {docs / REPORT}, its pictures are in {report.pictures}."]


def _draw_domains(name: str, path: Path, data_dir: Path | None, device: str, features: str | None) -> str:
    if data_dir is None or catalog.locate(name, data_dir) is None:
        kept = f"{path.name} stays as it is" if path.is_file() else f"{path.name} is not drawn"
        why = "no --data-dir is given" if data_dir is None else f"{shown(name)} is not in {data_dir}"
        return f"{kept}, as {why}."
    from fedaf.reproduce.domain_features import domain_map

    points, domains, names = domain_map(name, data_dir, device=device, backbone=features)
    paper_figures.scatter(points, domains, names, path, title=f"features of {shown(name)} by domain")
    return f"{path.name} is drawn."
