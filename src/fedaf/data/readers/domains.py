"""Data sets of several domains: images in folders DOMAIN/CLASS, with lists of the training and test files.

A line of a list is ``domain/class/file number``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaf.common.naming import printable
from fedaf.data.readers.trees import Sample, Tree, hold_out, image_files
from fedaf.data.spec import DatasetSpec, ProgressCallback
from fedaf.data.storage.cache import Source
from fedaf.protocol import UserError


@dataclass(frozen=True)
class DomainReader:
    """Reads a folder for each domain.

    Args:
        folders: Folders below the data folder that may hold the domains.
        train_list: File name of the list of a domain's training files, with ``{}`` for the domain.
        test_list: The same for the test files.
        lists_required: Whether a data set without lists is an error; else a fifth of each class is held out.
        other_classes: Whether the lists also name files of other classes, which are ignored.
    """

    folders: tuple[str, ...]
    train_list: str
    test_list: str
    lists_required: bool = True
    other_classes: bool = False

    def places(self, spec: DatasetSpec, data_dir: Path) -> list[Path]:
        return [data_dir / folder for folder in self.folders]

    def find(
        self, spec: DatasetSpec, data_dir: Path, image_size: int | None, progress: ProgressCallback | None
    ) -> Source | None:
        for folder in self.places(spec, data_dir):
            if any((folder / domain).is_dir() for domain in spec.domains):
                tree, lists = self._tree(spec, folder)
                side = image_size or spec.shape[1]
                return tree.source(spec.name, side=side, colour=True, lists=lists, progress=progress)
        return None

    def _tree(self, spec: DatasetSpec, folder: Path) -> tuple[Tree, list[Path]]:
        if missing := [domain for domain in spec.domains if not (folder / domain).is_dir()]:
            raise _incomplete(f"{spec.title} in {folder} has no folder {', '.join(missing)}; add it.")
        around = [folder, folder.parent] if folder.name == "kfold" else [folder]
        names = [pattern.format(domain) for pattern in (self.train_list, self.test_list) for domain in spec.domains]
        lists = {name: path for name in names if (path := _find_list(around, name))}
        if not lists and not self.lists_required:
            train, test = hold_out(_unlisted(spec, folder))
            return Tree(folder, train, test, spec.classes, spec.domains), []
        if missing := [name for name in names if name not in lists]:
            remedy = "add them" if self.lists_required else "add them, or remove the other lists"
            raise _incomplete(f"{spec.title} in {folder} lacks the lists {', '.join(missing)}; {remedy}.")
        train, test = (
            [
                sample
                for domain in spec.domains
                for sample in _listed(lists[pattern.format(domain)], domain, spec.classes, self.other_classes)
            ]
            for pattern in (self.train_list, self.test_list)
        )
        return Tree(folder, train, test, spec.classes, spec.domains), list(lists.values())


def _unlisted(spec: DatasetSpec, folder: Path) -> list[Sample]:
    samples = []
    for domain in spec.domains:
        for label in spec.classes:
            inside = folder / domain / label
            files = image_files(inside) if inside.is_dir() else []
            if not files:
                raise _incomplete(f"{spec.title} in {folder} is incomplete: {inside} holds no images; add them.")
            samples += [Sample(f"{domain}/{label}/{file}", label, domain) for file in files]
    return samples


def _find_list(folders: Sequence[Path], name: str) -> Path | None:
    """Find a list in one of the folders or one level below."""
    for folder in folders:
        below = sorted(item for item in folder.iterdir() if item.is_dir() and not item.name.startswith("."))
        for place in (folder, *below):
            if (place / name).is_file():
                return place / name
    return None


def _listed(path: Path, domain: str, classes: Sequence[str], other_classes: bool) -> list[Sample]:
    """Return the files of a list, sorted. The class is the folder of a file; the number on its line is ignored."""
    samples = []
    for number, line in enumerate(path.read_text(errors="surrogateescape").splitlines(), 1):
        if not line.strip():
            continue
        name, _, label = line.strip().rpartition(" ")
        parts = name.strip().split("/")
        valid = len(parts) == 3 and parts[0] == domain and not {"", ".", ".."} & set(parts) and "\0" not in name
        if not valid or not label.isdecimal() or not (other_classes or parts[1] in classes):
            raise UserError(
                f"line {number} of {path} is {printable(line)!r:.80}; expected {domain}/CLASS/FILE and a number.",
                code="FEDAF-DATA-LIST",
            )
        if parts[1] in classes:
            samples.append(Sample("/".join(parts), parts[1], domain))
    if not samples:
        raise UserError(f"{path} lists no file of the classes {', '.join(classes)}.", code="FEDAF-DATA-LIST")
    return sorted(samples, key=lambda sample: sample.file)


def _incomplete(what: str) -> UserError:
    return UserError(what, code="FEDAF-DATA-INCOMPLETE")
