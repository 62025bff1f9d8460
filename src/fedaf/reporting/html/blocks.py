"""The parts of a report that its template can show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from fedaf.reporting.html.svg import Drawing, Series


class Num(NamedTuple):
    """A number in a table: its text, and the exact value for programs that read the page."""

    text: str
    value: float
    #: Share of a bar behind the number, from 0 to 1.
    share: float | None = None


class Badge(NamedTuple):
    """A short verdict with a colour: ``good``, ``bad`` or ``plain``."""

    badge: str
    kind: str


class Named(NamedTuple):
    """The name of a variant, with its colour."""

    label: str
    css: str


Cell = str | Num | Badge | Named


@dataclass(frozen=True)
class Table:
    """A table with a caption. The first cell of each row names it; ``folded`` shows the caption until it is opened."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    folded: bool = False
    kind: ClassVar[str] = "table"

    @property
    def wordy(self) -> list[bool]:
        """Whether each column has text, which is aligned left, and no number."""
        return [not any(isinstance(row[i], Num) for row in self.rows) for i in range(len(self.columns))]


@dataclass(frozen=True)
class Chart:
    """A chart, and the table with its numbers.

    Args:
        title: What it shows.
        drawing: The chart.
        table: Its numbers.
        description: What a reader who cannot see it should know.
        narrow: The chart for narrow screens, if it differs.
        legend: Names and colours of the lines; empty if the chart names them.
        size: ``small`` (several in a row), ``half`` or ``wide``.
    """

    title: str
    drawing: Drawing
    table: Table
    description: str = ""
    narrow: Drawing | None = None
    legend: Sequence[Series] = ()
    size: str = "small"
    kind: ClassVar[str] = "chart"


@dataclass(frozen=True)
class Text:
    """Paragraphs."""

    paragraphs: Sequence[str]
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Facts:
    """Names with their values."""

    heading: str
    facts: Mapping[str, Sequence[Cell]]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Tiles:
    """A few numbers that a reader should see first: name, value and a note."""

    tiles: Sequence[tuple[str, Num, str]]
    kind: ClassVar[str] = "tiles"


@dataclass(frozen=True)
class Verdicts:
    """Sentences with a badge: the conclusions of a comparison."""

    verdicts: Sequence[tuple[Badge, str]]
    kind: ClassVar[str] = "verdicts"


@dataclass(frozen=True)
class Picture:
    """An image as a data URI."""

    uri: str
    width: int
    height: int
    alt: str
    caption: str


@dataclass(frozen=True)
class Pictures:
    """Rows of images with a heading: a name and a note for each row, and its images."""

    heading: Named
    rows: Sequence[tuple[str, str, Sequence[Picture]]]
    kind: ClassVar[str] = "pictures"


Block = Table | Chart | Text | Facts | Tiles | Verdicts | Pictures


@dataclass(frozen=True)
class Section:
    """A section of the report.

    Args:
        id: Its anchor.
        title: Its heading.
        intro: What the section shows, in one or two sentences.
        blocks: Its content.
    """

    id: str
    title: str
    intro: str = ""
    blocks: Sequence[Block] = field(default=())
