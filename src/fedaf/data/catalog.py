"""Opening data sets by name: where they are, and how they are loaded."""

from functools import partial
from pathlib import Path
from shlex import quote

from fedaf.data.dataset import DataSet
from fedaf.data.readers import folders, npz
from fedaf.data.registry import DATASETS
from fedaf.data.spec import NO_DATA, DatasetSpec, ProgressCallback
from fedaf.data.storage import cache, stored
from fedaf.data.storage.cache import Source
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
    if not name.isprintable():  # includes bytes that are not UTF-8
        raise UserError(
            f"the data set name {name!r} has characters that cannot be printed; rename its folder or file.",
            code="FEDAF-DATA-NAME",
        )
    if name in (_NPZ, _FOLDER):
        raise UserError(f"data set {name!r} names no path; expected npz:FILE or folder:DIR.", code="FEDAF-DATA-NAME")
    if not is_path(name):
        DATASETS.find(name)


def load(
    name: str,
    data_dir: Path,
    *,
    image_size: int | None = None,
    max_unreadable: float = 0.01,
    progress: ProgressCallback | None = None,
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
    try:
        if known and known.load:
            stored.check_size(name, name, known.shape, image_size)
            return _loaded(name, known, data_dir)
        found = _find(name, data_dir, image_size, progress, known, spec)
        if found is None:
            raise UserError(_missing(name, data_dir, known), code="FEDAF-DATA-NOT-FOUND")
        return _open(name, found, image_size, max_unreadable, known, spec)
    except OSError as error:
        raise UserError(f"data set {name!r} cannot be read ({error}).", code="FEDAF-DATA-READ") from error


def locate(name: str, data_dir: Path) -> Path | None:
    """Return where the files of a data set are, without reading them; ``None`` if they are missing or incomplete, and
    for data sets that need no files."""
    check_name(name)
    known = find_spec(name)
    try:
        found = None if known and known.load else _find(name, data_dir, None, None, known)
    except (UserError, OSError):
        return None
    return found.root if isinstance(found, Source) else found


def _find(
    name: str,
    data_dir: Path,
    image_size: int | None,
    progress: ProgressCallback | None,
    known: DatasetSpec | None,
    spec: DatasetSpec | None = None,
) -> Source | Path | None:
    """Return a file in the stored form, or how to convert the data to it."""
    if name.startswith(_FOLDER):
        return folders.source(Path(name.removeprefix(_FOLDER)), image_size=image_size, progress=progress, spec=spec)
    for path in known.npz_files(data_dir) if known else [Path(name.removeprefix(_NPZ))]:
        if path.is_file():
            return npz.source(path) or path
    return known.reader.find(known, data_dir, image_size, progress) if known and known.reader else None


def _open(
    name: str,
    found: Source | Path,
    image_size: int | None,
    max_unreadable: float,
    known: DatasetSpec | None,
    spec: DatasetSpec | None,
) -> DataSet:
    title, expected = (name, known) if spec is None else ("the federation", spec)
    read = partial(stored.read, title, spec=expected, image_size=image_size, max_unreadable=max_unreadable)
    if isinstance(found, Source):
        return cache.opened(found, partial(read, shown=found.root))
    with npz.report_damage(found):
        return read(found, shown=found)


def _loaded(name: str, spec: DatasetSpec, data_dir: Path) -> DataSet:
    assert spec.load is not None
    data = spec.load(data_dir)
    shape = tuple(data.train.images.shape[1:])
    if shape != spec.shape or data.num_classes != spec.num_classes:
        raise UserError(
            f"data set {name!r} loads images of shape {shape} and {data.num_classes} classes, but its SPEC says "
            f"{spec.shape} and {spec.num_classes}; change one of them.",
            code="FEDAF-DATA-SPEC",
        )
    return data


def _missing(name: str, data_dir: Path, known: DatasetSpec | None) -> str:
    """Say everywhere a data set was looked for, and how to get it."""
    if known is None:
        return f"data set {name!r}: there is no file {name.removeprefix(_NPZ)}; give the path of an .npz file."
    places = ", ".join(map(str, known.places(data_dir)))
    verb = "downloads it" if known.files else "says where to get it"
    advice = f"`fedaf data fetch {name} --data-dir {quote(str(data_dir))}` {verb}"
    return f"data set {name!r} is in none of {places}; {advice}, or give the folder it is in with --data-dir."
