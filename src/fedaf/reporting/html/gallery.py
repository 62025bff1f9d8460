"""The gallery: condensed images that clients shared, over rounds, as small PNG files inside the page."""

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from fedaf.federation.checkpoint import not_publishable
from fedaf.federation.run_directory import CONDENSED, GALLERY, INDEX
from fedaf.reporting.html.blocks import Block, Picture, Pictures, Section, Text
from fedaf.reporting.html.groups import Group, Variant
from fedaf.reporting.html.summary import name_of

_MOST_ROUNDS, _MOST_CLIENTS, _MOST_CLASSES, _MOST_IMAGES = 6, 3, 10, 5
_SHOWN = 32  # side of an image on the page, at least
_UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, SyntaxError, IndexError, RecursionError),
    *(Image.DecompressionBombError, Image.DecompressionBombWarning),
)


_ROOM = 2_400_000  # bytes of all images


@dataclass
class Room:
    """The bytes of images that a report still has room for.

    Args:
        sheet: Bytes of a sheet; larger ones are cut to fewer images.
        left: Bytes that are left.
        dropped: Sheets that did not fit.
    """

    sheet: int
    left: int = _ROOM
    dropped: int = 0

    @classmethod
    def shared_by(cls, groups: Sequence[Group]) -> "Room":
        """Return room in which the variants that have images have equal shares."""
        runs = [variant.first.path for group in groups for variant in group.variants]
        galleries = sum((path / CONDENSED).is_dir() for path in runs)
        return cls(_ROOM // (max(1, galleries) * _MOST_ROUNDS * _MOST_CLIENTS))

    def takes(self, size: int) -> bool:
        """Return whether a picture of this size fits, and count it."""
        if size > self.left:
            self.dropped += 1
            return False
        self.left -= size
        return True


def gallery(group: Group, room: Room) -> Section | None:
    """Return the condensed images of the first seed of each variant, by client and round."""
    blocks: list[Block] = []
    dropped = room.dropped
    for variant in group.variants:
        try:
            blocks += _of_variant(variant, room)
        except _UNREADABLE:
            blocks.append(Text([f"The folder {CONDENSED} of {variant.label} is damaged; its images are left out."]))
    if room.dropped > dropped:
        blocks.append(Text(["More images are in the run directories; the report has no room for them."]))
    intro = (
        "Condensed images, which clients made from their data and sent to the server. A row for each class; a few "
        "images of a few clients; rounds 1, 2, 4, 8 and so on, and the last one."
    )
    return Section("gallery", "Gallery", intro, blocks) if blocks else None


def _of_variant(variant: Variant, room: Room) -> list[Block]:
    run = variant.first
    withheld, hidden = not_publishable(run.path), set()
    sheets: dict[str, dict[int, _Sheet]] = {}
    for number, folder in _rounds(run.path / CONDENSED, int(run.result["rounds"])):
        for sheet in _sheets(folder, room.sheet):
            if sheet.client in withheld:
                hidden.add(sheet.client)
            else:
                sheets.setdefault(sheet.client, {})[number] = sheet
    rounds = _some(sorted({number for by_round in sheets.values() for number in by_round}))
    found: list[tuple[str, str, list[Picture]]] = []
    for client in sorted(sheets, key=lambda name: (-len(sheets[name]), len(name), name))[:_MOST_CLIENTS]:
        pictures = []
        for number in rounds:
            shown = sheets[client].get(number)
            if shown is not None and room.takes(len(shown.png)):
                pictures.append(_picture(shown, variant.label, number, run.classes))
        if pictures:
            rows = list(sheets[client].values())[-1].classes
            note = f"classes {', '.join(_name(run.classes, label) for label in rows)}"
            found.append((client, note, pictures))
    blocks: list[Block] = [Pictures(name_of(variant), found)] if found else []
    if hidden:
        names = ", ".join(sorted(hidden, key=lambda name: (len(name), name)))
        blocks.append(Text([f"{variant.label}: the policies of {names} do not allow their images to be published."]))
    return blocks


def _rounds(folder: Path, last: int) -> list[tuple[int, Path]]:
    """Return the folders of images by round; the newest images come last."""
    kept = folder / GALLERY
    numbers = sorted(int(each.name) for each in kept.iterdir() if each.name.isdigit()) if kept.is_dir() else []
    newest = [(last, folder)] if (folder / INDEX).is_file() else []
    return [*((number, kept / str(number)) for number in numbers if number < last), *newest]


def _some(rounds: Sequence[int]) -> list[int]:
    """Return the rounds to show: at most ``_MOST_ROUNDS`` of them, always with the first and the last."""
    if len(rounds) <= _MOST_ROUNDS:
        return list(rounds)
    step = (len(rounds) - 1) / (_MOST_ROUNDS - 1)
    return [rounds[round(index * step)] for index in range(_MOST_ROUNDS)]


@dataclass(frozen=True)
class _Sheet:
    client: str
    classes: Sequence[int]
    png: bytes
    width: int
    height: int
    side: int


def _sheets(folder: Path, most: int) -> list[_Sheet]:
    """Return the sheets of a round, cut to a few classes and images. Pixels are copied, nothing else of the files."""
    index: dict[str, Any] = json.loads((folder / INDEX).read_bytes())
    found = []
    for client, facts in sorted(index.items(), key=lambda item: (len(item[0]), item[0])):
        if Path(client).name != client or client.startswith("."):
            continue  # a name that leads to another folder
        classes = [int(label) for label in facts["classes"][:_MOST_CLASSES]]
        height, width = int(facts["height"]), int(facts["width"])
        with Image.open(folder / f"{client}.png") as sheet:
            fitting = max(1, most // (height * width * len(sheet.getbands())))  # images, if they do not compress
            classes = classes[:fitting]
            columns = min(int(facts["columns"]), _MOST_IMAGES, max(1, fitting // len(classes)))
            size = columns * (width + 1) - 1, len(classes) * (height + 1) - 1
            if sheet.format != "PNG" or sheet.width < size[0] or sheet.height < size[1]:
                raise ValueError(f"the sheet of {client} does not match the index")
            cut = sheet.convert("L" if sheet.mode == "L" else "RGB").crop((0, 0, *size))
        buffer = io.BytesIO()
        cut.save(buffer, format="PNG", optimize=True)
        found.append(_Sheet(client, classes, buffer.getvalue(), *size, max(height, width)))
    return found


def _picture(sheet: _Sheet, label: str, number: int, names: Sequence[str]) -> Picture:
    scale = max(1, round(_SHOWN / sheet.side))
    classes = ", ".join(_name(names, each) for each in sheet.classes)
    alt = f"Condensed images of {sheet.client} by {label} in round {number}; rows are the classes {classes}"
    uri = "data:image/png;base64," + base64.b64encode(sheet.png).decode()
    return Picture(uri, sheet.width * scale, sheet.height * scale, alt, f"round {number}")


def _name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else str(label)
