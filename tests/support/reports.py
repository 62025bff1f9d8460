"""Reports to test: the directories of invented runs, real runs on digits, and the content of a page."""

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import fedaf
from support.small import SMALL, SMALL_FEDAF

CLASSES = ["cat", "dog", "eel"]


def invented(
    folder: Path,
    *,
    curve: Sequence[float | None] = (50.0, 60.0),
    lines: Sequence[Mapping[str, Any]] | None = None,
    **more,
) -> Path:
    """Write the directory of a run with these figures; ``lines`` are those of metrics.jsonl."""
    folder.mkdir(parents=True)
    known = [value for value in curve if value is not None]
    result = {
        "method": "fedaf",
        "dataset": "digits",
        "partition": "dirichlet",
        "alpha": 0.1,
        "clients": 2,
        "seed": 0,
        "rounds": len(curve),
        "planned_rounds": len(curve),
        "curve": list(curve),
        "classes": CLASSES,
        "best_accuracy": max(known, default=None),
        "last_accuracy": curve[-1],
        "seconds": 12.5,
        "model": "convnet",
        "upload_bytes_per_client_round": 2048.0,
        "download_bytes_per_client_round": 10.0,
        **more,
    }
    (folder / "result.json").write_text(json.dumps(result))
    if lines is not None:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def a_line(round: int, **more: Any) -> dict[str, Any]:
    """A line of metrics.jsonl with two clients."""
    sent = {"fit": {"client-0": 100, "client-1": 300}}
    plain = {"round": round, "losses": {"ce": 1.0 / round}, "seconds": {"fit": 1.0, "server": 0.5}}
    bytes_ = {"upload_bytes": sent, "download_bytes": sent}
    return {**plain, **bytes_, "asked": ["client-0", "client-1"], "failures": {}, **more}


def shared_images(folder: Path, images: np.ndarray, *, client: str = "client-0", classes: Sequence[int] = (0,)) -> None:
    """Write images [classes, n, H, W] as those that a client shared last."""
    rows, columns, height, width = images.shape
    sheet = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1), 255, np.uint8)
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + 1), column * (width + 1)
            sheet[top : top + height, left : left + width] = images[row, column]
    (folder / "condensed").mkdir(exist_ok=True)
    Image.fromarray(sheet).save(folder / "condensed" / f"{client}.png")
    index = {client: {"classes": list(classes), "columns": columns, "height": height, "width": width}}
    (folder / "condensed" / "index.json").write_text(json.dumps(index))


def digits_runs(folder: Path) -> list[Path]:
    """Run FedAF and FedAvg on digits with two seeds each, with real condensation."""
    found = []
    for seed in (0, 1):
        for method, options in (("fedaf", SMALL_FEDAF), ("fedavg", {"local_epochs": 1})):
            out = folder / method / f"seed{seed}"
            fedaf.run(dataset="digits", method=method, seed=seed, out=out, **SMALL, **options)
            found.append(out)
    return found


class Content(HTMLParser):
    """What a page holds."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._raw = "", file.read_text()
        self.feed(self._raw)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """The attributes of every element of this name."""
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def values(self) -> set[float]:
        """The exact numbers behind those of the tables."""
        return {float(attributes["value"] or "nan") for attributes in self.all("data")}

    @property
    def sections(self) -> list[str]:
        """The anchors of the sections."""
        return [attributes["id"] or "" for attributes in self.all("section")]

    def images(self) -> Iterator[np.ndarray]:
        """The pixels of every image of the page [H, W, channels]."""
        for attributes in self.all("img"):
            kind, _, data = (attributes["src"] or "").partition(",")
            assert kind == "data:image/png;base64", kind
            yield np.atleast_3d(np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))))


def private_blocks(page: Content, private: np.ndarray) -> int:
    """Count the places in the images of a page that are exactly a private image [n, H, W], at any position."""
    _, height, width = private.shape
    known = {image.tobytes() for image in private}
    count = 0
    for image in page.images():
        for channel in np.moveaxis(image, -1, 0):
            windows = np.lib.stride_tricks.sliding_window_view(np.ascontiguousarray(channel), (height, width))
            count += sum(window.tobytes() in known for window in windows.reshape(-1, height, width))
    return count
