"""Opening data sets by name: where they are, and how they are loaded."""

from functools import partial
from pathlib import Path
from shlex import quote

from fedaf.data.dataset import DataSet
from fedaf.data.problems import damaged, not_found
from fedaf.data.readers import folders, npz
from fedaf.data.registry import DATASETS
from fedaf.data.spec import NO_DATA, DatasetSpec, Progress
from fedaf.data.storage import cache, stored
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import Damaged
from fedaf.protocol import UserError

_NPZ, _FOLDER = "npz:", "folder:"


def find_spec(name: str) -> DatasetSpec | None:
    """Return the specification of a data set; ``None`` for ``npz:FILE``, ``folder:DIR`` and ``none``.

    Raises:
        UserError: If the name is unknown, or ``module:SPEC`` cannot be loaded.
    """
    return None if name == NO_DATA or is_path(name) else DATASETS.find(name)


def is_path(name: str) -> bool:
    """Return whether a name is ``npz:FILE`` or ``folder:DIR``."""
    return name.startswith((_NPZ, _FOLDER))


def check_name(name: str) -> None:
    """Raise ``UserError`` if ``load`` does not take this name."""
    if not name.isprintable() or name in (_NPZ, _FOLDER):  # bytes that are not UTF-8 cannot be printed either
        what = f"the data set name {name!r} has unprintable characters, or no path after npz: or folder:"
        raise UserError(f"{what}; rename the folder or file, or add the path.", code="FEDAF-DATA-NAME")
    if not is_path(name):
        DATASETS.find(name)


def load(
    name: str,
    data_dir: Path,
    *,
    image_size: int | None = None,
    max_unreadable: float = 0.01,
    progress: Progress = None,
    spec: DatasetSpec | None = None,
) -> DataSet:
    """Open a data set. Everything except an uncompressed .npz is converted on first use; the copy is cached.

    Args:
        name: A name of the registry, ``module:SPEC``, ``npz:FILE`` or ``folder:DIR``.
        data_dir: Folder of the data files of named data sets, as published or as ``NAME.npz``.
        image_size: Resize image files to squares of this side.
        max_unreadable: Share of image files that may be unreadable.
        progress: Called while image files are decoded.
        spec: The specification that a client's own data must fit: image files are converted to its shape, and a
            folder may have only some of its classes.

    Raises:
        UserError: If the name is unknown, or the data are missing, damaged or do not fit.
    """
    check_name(name)
    if image_size is not None and image_size < 1:
        raise UserError(f"data.image_size is {image_size}; it must be at least 1.", code="FEDAF-DATA-IMAGE-SIZE")
    known = find_spec(name)
    title, expected = (name, known) if spec is None else ("the federation", spec)
    read = partial(stored.read, title, spec=expected, image_size=image_size, max_unreadable=max_unreadable)
    try:
        if known and known.load:
            stored.check_size(name, name, known.shape, image_size)
            return _loaded(name, known, known.load(data_dir))
        found = _find(name, data_dir, image_size, progress, spec)
        if found is None:
            raise not_found(_missing(name, data_dir, known))
        if isinstance(found, Source):
            return cache.opened(found, partial(read, shown=found.root))
        return read(found, shown=found)
    except Damaged as error:
        raise damaged(str(error), "expected an .npz file with x_train, y_train, x_test and y_test") from error
    except OSError as error:
        raise UserError(f"data set {name!r} cannot be read ({error}).", code="FEDAF-DATA-READ") from error


def locate(name: str, data_dir: Path) -> Path | None:
    """Return where the files of a data set are, without reading them; ``None`` if they are missing or incomplete, and
    for data sets that need no files."""
    check_name(name)
    try:
        found = _find(name, data_dir)
    except (UserError, OSError, Damaged):
        return None
    return found.root if isinstance(found, Source) else found


def _find(
    name: str,
    data_dir: Path,
    image_size: int | None = None,
    progress: Progress = None,
    spec: DatasetSpec | None = None,
) -> Source | Path | None:
    """Return a file in the stored form, or how to convert the data to it."""
    if name.startswith(_FOLDER):
        return folders.source(Path(name.removeprefix(_FOLDER)), image_size, progress, spec)
    known = find_spec(name)
    if known and known.load:
        return None
    for path in known.npz_files(data_dir) if known else [Path(name.removeprefix(_NPZ))]:
        if path.is_file():
            return npz.source(path) or path
    return known.reader.find(known, data_dir, image_size, progress) if known and known.reader else None


def _loaded(name: str, spec: DatasetSpec, data: DataSet) -> DataSet:
    shape = tuple(data.train.images.shape[1:])
    if shape != spec.shape or data.num_classes != spec.num_classes:
        what = f"data set {name!r} loads images of shape {shape} and {data.num_classes} classes"
        raise UserError(f"{what}; its SPEC says {spec.shape} and {spec.num_classes}.", code="FEDAF-DATA-SPEC")
    return data


def _missing(name: str, data_dir: Path, known: DatasetSpec | None) -> str:
    """Say everywhere a data set was looked for, and how to get it."""
    if known is None:
        return f"data set {name!r}: there is no file {name.removeprefix(_NPZ)}; give the path of an .npz file."
    places = ", ".join(map(str, known.places(data_dir)))
    verb = "downloads it" if known.files else "says where to get it"
    advice = f"`fedaf data fetch {name} --data-dir {quote(str(data_dir))}` {verb}"
    return f"data set {name!r} is in none of {places}; {advice}, or give the folder it is in with --data-dir."
