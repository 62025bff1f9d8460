"""Labels of image files in a CSV file beside them, as medical and Kaggle data sets have them."""

import csv
import io
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from fedaf.common.naming import printable
from fedaf.data.problems import damaged, table, wrong_column, wrong_labels, wrong_layout
from fedaf.data.readers import columns
from fedaf.data.readers.trees import Sample, image_files
from fedaf.data.spec import Columns

log = logging.getLogger(__name__)
_NAMES = ("labels.csv", "metadata.csv")
_TABLES = {".csv", ".tsv", ".xls", ".xlsx"}


def labels_file(folder: Path) -> Path | None:
    """Return the CSV file with the labels of a folder: labels.csv or metadata.csv, else the only CSV file, if the
    images are not in class folders.

    Raises:
        UserError: If several CSV files may have the labels, or if there are tables but no images.
    """
    named = [folder / name for name in _NAMES if (folder / name).is_file()]
    tables = sorted(path for path in folder.iterdir() if path.suffix.lower() in _TABLES and path.is_file())
    if not tables:
        return None
    files = image_files(folder)
    if not files:
        raise table(f"{folder} has {printable(tables[0].name)} and no image files")
    if named:
        return named[0]
    candidates = [path for path in tables if path.suffix.lower() == ".csv"]
    if not candidates or all("/" in file for file in files):
        return None
    if len(candidates) > 1:
        listed = ", ".join(printable(path.name) for path in candidates)
        raise wrong_layout(f"{folder} has {listed}; rename the one that has the labels to labels.csv.")
    return candidates[0]


def read(folder: Path, path: Path, given: Columns) -> tuple[list[Sample], list[Sample]]:
    """Return the training samples and the test samples of a CSV file; no test samples if it has no splits.

    Args:
        folder: The folder of the images.
        path: The CSV file.
        given: The columns that the user names.

    Raises:
        UserError: If a column is missing or ambiguous, or a row is wrong.
    """
    rows = _rows(path)
    names = list(rows[0][1])
    image, label = (columns.require(role, names, given, path) for role in ("image", "label"))
    split, client, domain = (columns.find(role, names, given, path) for role in ("split", "client", "domain"))
    used = {"image": image, "label": label, "split": split, "client": client, "domain": domain}
    log.info("%s: %s", path, ", ".join(f"{role} is {name}" for role, name in used.items() if name))
    found = _Files(folder)
    lines: dict[str, int] = {}  # by file
    parts: dict[str, list[Sample]] = defaultdict(list)
    for number, row in rows:
        for role in ("label", "client", "domain"):
            if (name := used[role]) and not row[name].strip():
                raise wrong_labels(f"line {number} of {path} has no {role} in the column {name}; add it.")
        part = columns.part_of(row[split]) if split else "train"
        if part is None:
            what = f"line {number} of {path} has the split {printable(row[split or ''])!r}"
            raise wrong_labels(f"{what}; expected train, test or validation.")
        file = found.find(row[image].strip(), f"line {number} of {path}")
        if (other := lines.setdefault(file, number)) != number:
            what = f"line {number} of {path} names the file of line {other}, {printable(file)}"
            raise wrong_labels(f"{what}; keep one line for each file.")
        texts = (row[name].strip() if name else "" for name in (label, domain, client))
        parts[part].append(Sample(file, *texts))
    if unlisted := len(set(found.files) - lines.keys()):
        log.warning("%s has %d image files without a row in %s; they are left out", folder, unlisted, path.name)
    return columns.train_and_test(path, parts)


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Return each row with the number of its line, the last one if quotes hold several lines."""
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        header = text.lstrip().split("\n", 1)[0]
        delimiter = max((",", ";", "\t"), key=header.count)
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        (_, names), *rows = [(reader.line_num, row) for row in reader if row]
    except (csv.Error, ValueError) as error:
        reason = printable(str(error))
        raise damaged(f"{path} is not a CSV file with a header and rows ({reason})", "correct it") from error
    names = [name.strip() for name in names]
    if len(set(names)) != len(names):
        raise wrong_column(f"{path} has two columns with one name: {', '.join(map(printable, names))}; rename one.")
    for number, row in rows:
        if len(row) != len(names):
            raise damaged(f"line {number} of {path} has {len(row)} values for {len(names)} columns", "correct it")
    if not rows:
        raise damaged(f"{path} has no rows", "add the labels of the images")
    return [(number, dict(zip(names, row, strict=True))) for number, row in rows]


class _Files:
    """The image files of a folder, found by path, by name, or by name without its ending."""

    def __init__(self, folder: Path) -> None:
        self.files = image_files(folder)
        self._paths = set(self.files)
        self._short: dict[str, list[str]] = defaultdict(list)
        for file in self.files:
            name = PurePosixPath(file)
            for key in {str(name.with_suffix("")), name.name, name.stem} - {file}:
                self._short[key].append(file)

    def find(self, given: str, where: str) -> str:
        """Return the path of a file below the folder. A file that does not exist is reported as unreadable later."""
        file = str(PurePosixPath(given.replace("\\", "/")))  # one spelling: ./a//b.png is a/b.png
        if file == "." or file.startswith("/") or ".." in file.split("/") or "\0" in file:
            raise wrong_layout(f"{where} names the file {printable(given)!r:.80}; expected one inside the folder.")
        found: Sequence[str] = [file] if file in self._paths else self._short.get(file, [])
        if len(found) > 1:
            what = f"{where} names the file {printable(given)!r:.80}, which may be {printable(found[0])}"
            raise wrong_layout(f"{what} or {printable(found[1])}; give its path in the folder.")
        return found[0] if found else file
