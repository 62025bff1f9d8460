"""The data sets by name: where their files are looked for, and how they are opened."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

import numpy as np
import torch

from fedaf.common.naming import nearest
from fedaf.data.dataset import DataSet, Split
from fedaf.data.entries import CATALOG, DatasetSpec
from fedaf.data.fetch.remotes import REMOTES
from fedaf.data.readers import cifar, domainnet, folders, idx, npz, pacs
from fedaf.data.storage import cache, stored
from fedaf.data.storage.cache import Source
from fedaf.protocol import Key, UserError

__all__ = ["CATALOG", "DatasetSpec", "check_name", "load", "locate"]

_DIGITS_SPLIT = Key(20240617)  # the test split of digits is the same in every run, whatever its seed
_NPZ, _FOLDER = "npz:", "folder:"


def check_name(name: str) -> None:
    """Raise ``UserError`` for a name that no reader knows."""
    if not name.isprintable():  # so are bytes that are no UTF-8
        raise UserError(f"the data set name {name!r} has characters that cannot be printed; rename its folder or file.")
    if name in CATALOG or any(name.startswith(own) and name != own for own in (_NPZ, _FOLDER)):
        return
    allowed = f"one of {', '.join(CATALOG)}, or npz:FILE, or folder:DIR"
    raise UserError(f"unknown data set {name!r}{nearest(name, CATALOG)}; allowed is {allowed}.")


def load(
    name: str,
    data_dir: Path,
    *,
    image_size: int | None = None,
    max_unreadable: float = 0.01,
    watch: Callable[[int, int], None] | None = None,
    entry: DatasetSpec | None = None,
) -> DataSet:
    """Open a data set: one of the catalog (``digits`` comes with scikit-learn, the others lie in ``data_dir`` as
    published or as ``NAME.npz``), ``npz:FILE`` or ``folder:DIR``. Image files are resized to squares of ``image_size``;
    ``max_unreadable`` is the share of them that may be unreadable, and ``watch(done, total)`` is told while they are
    decoded. ``entry`` says what data of one's own must be to fit those of others: image files are made to its shape, a
    folder may lack some of its classes. Whatever is no plain .npz is converted on first use, and kept (see
    ``cache.folder``)."""
    check_name(name)
    if image_size is not None and image_size < 1:
        raise UserError(f"data.image_size is {image_size}; it must be at least 1.")
    if name == "digits":
        return _digits(image_size)
    try:
        found = _find(name, data_dir, image_size, watch, entry)
        if found is None:
            raise UserError(_missing(name, data_dir))
        return _open(name, found, image_size, max_unreadable, entry)
    except OSError as error:
        raise UserError(f"data set {name!r} cannot be read ({error}).") from error


def locate(name: str, data_dir: Path) -> Path | None:
    """Where a data set lies, without reading it; ``None`` where it is not or not whole, and for embedded digits."""
    check_name(name)
    try:
        found = None if name == "digits" else _find(name, data_dir, None, None)
    except (UserError, OSError):
        return None
    return found.root if isinstance(found, Source) else found


def _find(
    name: str,
    data_dir: Path,
    image_size: int | None,
    watch: Callable[[int, int], None] | None,
    own: DatasetSpec | None = None,
) -> Source | Path | None:
    """A file that is in the form already, or what must be converted to it."""
    if name.startswith(_FOLDER):
        return folders.source(Path(name.removeprefix(_FOLDER)), image_size=image_size, watch=watch, entry=own)
    for path in _arrays(name, data_dir):
        if path.is_file():
            return npz.source(path) or path
    entry = CATALOG.get(name)
    if entry is None:
        return None
    match name:
        case "mnist" | "fashionmnist":
            return idx.find(name, data_dir, entry)
        case "cifar10" | "cifar100":
            return cifar.find(name, data_dir, entry)
        case "pacs":
            return pacs.find(data_dir, entry, image_size=image_size, watch=watch)
    return domainnet.find(data_dir, entry, image_size=image_size, watch=watch)


def _open(
    name: str, found: Source | Path, image_size: int | None, max_unreadable: float, own: DatasetSpec | None
) -> DataSet:
    called, entry = (name, CATALOG.get(name)) if own is None else ("the federation", own)
    read = partial(stored.read, called, entry=entry, image_size=image_size, max_unreadable=max_unreadable)
    if isinstance(found, Source):
        return cache.opened(found, partial(read, shown=found.root))
    with npz.refusing(found):
        return read(found, shown=found)


def _arrays(name: str, data_dir: Path) -> list[Path]:
    """The .npz files that may hold a data set."""
    if name.startswith(_NPZ):
        return [Path(name.removeprefix(_NPZ))]
    return [data_dir / f"{stem}.npz" for stem in ((name, "pacs64") if name == "pacs" else (name,))]


def _folders(name: str, data_dir: Path) -> list[Path]:
    """The folders in which the published files of a data set may lie."""
    match name:
        case "mnist" | "fashionmnist":
            return idx.places(name, data_dir)
        case "cifar10" | "cifar100":
            return cifar.places(name, data_dir)
        case "pacs":
            return pacs.places(data_dir)
    return domainnet.places(data_dir)


def _missing(name: str, data_dir: Path) -> str:
    """Every place where a data set is looked for, and how to get it."""
    if name.startswith(_NPZ):
        return f"data set {name!r} is not at {_arrays(name, data_dir)[0]}; name a file that is there."
    looked = ", ".join(str(place) for place in (*_arrays(name, data_dir), *_folders(name, data_dir)))
    verb = "says where to get it" if name not in REMOTES else "gets it"
    advice = f"`fedaf data fetch {name} --data-dir {quote(str(data_dir))}` {verb}"
    return f"data set {name!r} is at none of {looked}; {advice}, or name the folder it is in with --data-dir."


def _digits(image_size: int | None) -> DataSet:
    entry = CATALOG["digits"]
    stored.check_size("digits", "digits", entry.shape, image_size)
    table = np.loadtxt(_digits_file(), delimiter=",")
    pixels, targets = table[:, :-1].reshape(-1, *entry.shape), table[:, -1].astype(np.int64)
    images, labels = torch.from_numpy((pixels * (255 / 16)).round().astype(np.uint8)), torch.from_numpy(targets)
    test = torch.zeros(len(labels), dtype=torch.bool)
    rng = _DIGITS_SPLIT.numpy()
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(targets == label))
        test[torch.from_numpy(rows[: round(len(rows) / 5)])] = True
    train, held_out = Split(images[~test], labels[~test]), Split(images[test], labels[test])
    return DataSet("digits", train, held_out, 10, mean=entry.mean, std=entry.std, classes=entry.classes)


def _digits_file() -> Path:
    """Where scikit-learn keeps it: importing scikit-learn to ask takes longer than a client's process should."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise UserError("the data set 'digits' comes with scikit-learn, which is not installed.")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
