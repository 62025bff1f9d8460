"""DomainNet: six domains as folders of images with lists of training and test files; the ten classes of FedBN."""

from pathlib import Path

from fedaf.data.entries import DatasetSpec
from fedaf.data.readers.images import Watch
from fedaf.data.readers.listed import find_list, listed, missing_domains
from fedaf.data.readers.trees import Sample, Tree
from fedaf.data.storage.cache import Source
from fedaf.protocol import UserError


def places(data_dir: Path) -> list[Path]:
    return [data_dir / "domainnet", data_dir / "DomainNet", data_dir]


def find(data_dir: Path, entry: DatasetSpec, *, image_size: int | None, watch: Watch | None) -> Source | None:
    for folder in places(data_dir):
        if any((folder / domain).is_dir() for domain in entry.domains):
            tree, lists = _tree(folder, entry)
            side = image_size or entry.shape[1]
            return tree.source("domainnet", side=side, colour=True, lists=lists, watch=watch)
    return None


def _tree(folder: Path, entry: DatasetSpec) -> tuple[Tree, list[Path]]:
    missing_domains("DomainNet", folder, entry.domains)
    names = [f"{domain}_{part}.txt" for part in ("train", "test") for domain in entry.domains]
    lists = {name: path for name in names if (path := find_list([folder], name))}
    if missing := [name for name in names if name not in lists]:
        raise UserError(
            f"DomainNet in {folder} needs its lists, and {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing; put them there."
        )
    parts: dict[str, list[Sample]] = {}
    for part in ("train", "test"):
        parts[part] = [
            sample
            for domain in entry.domains
            for sample in listed(lists[f"{domain}_{part}.txt"], domain, entry.classes, others=True)
        ]
    return Tree(folder, parts["train"], parts["test"], entry.classes, entry.domains), list(lists.values())
