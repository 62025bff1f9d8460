"""Compose a report from its sections and write it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedaf.common.files import write_atomically
from fedaf.common.version import __version__
from fedaf.errors import UserError
from fedaf.reporting.html import federation, model, summary, trust
from fedaf.reporting.html.blocks import Section, Text
from fedaf.reporting.html.gallery import Room, gallery
from fedaf.reporting.html.groups import Group, grouped
from fedaf.reporting.html.reading import read_run

#: The name of the report in a run directory or the folder of a comparison.
REPORT = "report.html"

_MOST_DETAILED = 16  # variants in all groups up to which every section is shown
# Sections of a damaged or older run directory may lack what they need; result.json itself is checked before.
_DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError)

Builder = Callable[[Group], Section | None]


@dataclass(frozen=True)
class Page:
    """A group with its sections; ``prefix`` makes their anchors unique."""

    group: Group
    sections: Sequence[Section]
    prefix: str


def write_report(runs: Sequence[Path], out: Path, *, title: str | None = None, against: str | None = None) -> Path:
    """Write the report of finished runs as one HTML file that needs nothing else.

    Runs are grouped by data and split, then by method and settings; runs that differ only in their seed are averaged.

    Args:
        runs: Run directories, or directories of an archive that keep ``result.json`` and any of the other files.
        out: The file to write.
        title: The title. (default: the setting of the runs)
        against: Method that the others are compared with; ``None``: the first one.

    Returns:
        The file.

    Raises:
        UserError: There is no run, a ``result.json`` is damaged, or no run is of the method ``against``.

    Example:
        >>> write_report([Path("runs/demo/fedaf"), Path("runs/demo/fedavg")], Path("report.html"))
    """
    if not runs:
        raise UserError("there is no finished run to report; name run directories.", code="FEDAF-REPORT-NO-RUNS")
    groups = grouped([read_run(Path(path)) for path in runs], against)
    room, detailed = Room.shared_by(groups), sum(len(group.variants) for group in groups) <= _MOST_DETAILED
    pages = []
    for number, group in enumerate(groups, 1):
        sections = _sections(group, room, detailed=detailed)
        pages.append(Page(group, sections, "" if len(groups) == 1 else f"g{number}-"))
    styles = {v.style.css: v.style for group in groups for v in group.variants}
    # One template that this package owns; everything it inserts is escaped but the charts, which escape themselves.
    environment = Environment(
        loader=PackageLoader("fedaf.reporting.html", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("report.html.j2").render(
        title=title or _title(groups),
        pages=pages,
        styles=list(styles.values()),
        css=files("fedaf.reporting.html").joinpath("report.css").read_text(),
        version=__version__,
        detailed=detailed,
    )
    out = Path(out)
    write_atomically(out, text)
    return out


def _title(groups: Sequence[Group]) -> str:
    if len(groups) > 1:
        return f"{sum(len(group.results) for group in groups)} runs on {len(groups)} settings"
    group = groups[0]
    names = [variant.label for variant in group.variants]
    dataset = group.results[0]["dataset"]
    what = "own data" if dataset == "none" else dataset
    return f"{names[0]} on {what}" if len(names) == 1 else f"{group.counted} on {what}"


def _sections(group: Group, room: Room, *, detailed: bool) -> list[Section]:
    """Return the sections that the files of the runs have the numbers for."""

    def images(group: Group) -> Section | None:
        return gallery(group, room)

    overview: list[tuple[str, Builder]] = [
        ("Summary", summary.summary),
        ("Privacy", trust.privacy),
        ("Curves", model.curves),
        ("Domains", model.by_domain),
    ]
    details: list[tuple[str, Builder]] = [
        ("Loss terms", model.losses),
        ("Classes", model.by_class),
        ("Clients", model.by_client),
        ("Who holds what", federation.holdings),
        ("Gallery", images),
        ("Costs", federation.costs),
        ("Failures", federation.failures),
        ("Audits", trust.audits),
    ]
    last: list[tuple[str, Builder]] = [("Settings", trust.settings), ("Versions", trust.versions)]
    found = [_guarded(name, build, group) for name, build in (*overview, *(details if detailed else ()), *last)]
    return [section for section in found if section is not None]


def _guarded(name: str, build: Builder, group: Group) -> Section | None:
    """Build a section; of damaged files, a section that says so."""
    try:
        return build(group)
    except _DAMAGED as error:
        what = (
            f"This section is left out: a file of the runs is damaged or of another version ({type(error).__name__})."
        )
        return Section(name.lower().replace(" ", "-"), name, "", [Text([what])])
