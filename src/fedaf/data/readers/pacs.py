"""PACS: four domains of seven classes, as folders of images, with its published lists where they are there."""

from pathlib import Path

from fedaf.data.entries import DatasetSpec
from fedaf.data.readers.images import Watch
from fedaf.data.readers.listed import find_list, listed, missing_domains
from fedaf.data.readers.trees import Sample, Tree, hold_out, image_files
from fedaf.data.storage.cache import Source
from fedaf.protocol import UserError


def places(data_dir: Path) -> list[Path]:
    return [folder / inside for folder in (data_dir / "pacs", data_dir / "PACS", data_dir) for inside in ("kfold", "")]


def find(data_dir: Path, entry: DatasetSpec, *, image_size: int | None, watch: Watch | None) -> Source | None:
    for folder in places(data_dir):
        if any((folder / domain).is_dir() for domain in entry.domains):
            tree, lists = _tree(folder, entry)
            side = image_size or entry.shape[1]
            return tree.source("pacs", side=side, colour=True, lists=lists, watch=watch)
    return None


def _tree(folder: Path, entry: DatasetSpec) -> tuple[Tree, list[Path]]:
    """The crossval lists are the test split: the published test lists repeat the training images."""
    missing_domains("PACS", folder, entry.domains)
    around = [folder, folder.parent] if folder.name == "kfold" else [folder]
    names = [f"{domain}_{part}_kfold.txt" for part in ("train", "crossval") for domain in entry.domains]
    lists = {name: path for name in names if (path := find_list(around, name))}
    if not lists:
        train, test = hold_out(_unlisted(folder, entry))
        return Tree(folder, train, test, entry.classes, entry.domains), []
    if missing := [name for name in names if name not in lists]:
        raise UserError(
            f"{folder} has some of PACS's lists, but not {', '.join(missing)}; add them, or remove the others."
        )
    parts = {
        part: [
            sample
            for domain in entry.domains
            for sample in listed(lists[f"{domain}_{part}_kfold.txt"], domain, entry.classes, others=False)
        ]
        for part in ("train", "crossval")
    }
    return Tree(folder, parts["train"], parts["crossval"], entry.classes, entry.domains), list(lists.values())


def _unlisted(folder: Path, entry: DatasetSpec) -> list[Sample]:
    samples = []
    for domain in entry.domains:
        for label in entry.classes:
            inside = folder / domain / label
            files = image_files(inside) if inside.is_dir() else []
            if not files:
                raise UserError(f"PACS in {folder} is not whole: {inside} holds no images.")
            samples += [Sample(f"{domain}/{label}/{file}", label, domain) for file in files]
    return samples
