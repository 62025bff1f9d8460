"""Opening data sets by name: where they are, and how they are loaded."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from fedaf.common.registry import reason
from fedaf.data.checks import checked
from fedaf.data.dataset import DataSet
from fedaf.data.in_memory import as_dataset
from fedaf.data.problems import damaged, not_found, wrong_column
from fedaf.data.readers import folders, npz, parquet
from fedaf.data.registry import DATASETS
from fedaf.data.spec import FOLDER, NO_DATA, NPZ, PARQUET, PATHS, PYTHON, Columns, DatasetSpec, Progress
from fedaf.data.storage import cache, stored
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import Damaged
from fedaf.protocol import UserError


def find_spec(name: str) -> DatasetSpec | None:
    """Return the specification of a data set; ``None`` for paths, ``module:factory``, data from Python and ``none``.

    Raises:
        UserError: If the name is unknown, or ``module:SPEC`` cannot be loaded.
    """
    found = _entry(name)
    return found if isinstance(found, DatasetSpec) else None


def _entry(name: str) -> "DatasetSpec | Callable[..., Any] | None":
    return None if name == NO_DATA or is_path(name) or name.startswith(PYTHON) else DATASETS.find(name)


def is_path(name: str) -> bool:
    """Return whether a name is ``npz:FILE``, ``folder:DIR`` or ``parquet:DIR``."""
    return name.startswith(PATHS)


def check_name(name: str, given: object = None) -> None:
    """Raise ``UserError`` if ``load`` does not take this name, with the data that were given from Python."""
    if not name.isprintable() or name in PATHS:  # bytes that are not UTF-8 cannot be printed either
        what = f"the data set name {name!r} has unprintable characters, or no path after {' or '.join(PATHS)}"
        raise UserError(f"{what}; rename the folder or file, or add the path.", code="FEDAF-DATA-NAME")
    if given is not None and not name.startswith(PYTHON):
        what = f"the data are given from Python and named {name!r}; leave one of them out."
        raise UserError(what, code="FEDAF-DATA-CONFLICT")
    if given is None and name.startswith(PYTHON):
        what = f"the data {name!r} were given from Python and are not saved in any file; give them again"
        remedy = "with fedaf.resume(DIRECTORY, dataset=...) or fedaf.run(dataset=...)"
        raise UserError(f"{what} {remedy}.", code="FEDAF-DATA-FROM-PYTHON")
    _entry(name)


def load(
    name: str,
    data_dir: Path,
    *,
    image_size: int | None = None,
    max_unreadable: float = 0.01,
    progress: Progress = None,
    spec: DatasetSpec | None = None,
    columns: Columns = Columns(),  # noqa: B008
    given: object = None,
    needs_test: bool = True,
) -> DataSet:
    """Open a data set. Everything except an uncompressed .npz is converted on first use; the copy is cached.

    Args:
        name: A name of the registry, ``module:SPEC``, ``module:factory``, ``npz:FILE``, ``folder:DIR``, ``parquet:DIR``
            or ``python:NAME``.
        data_dir: Folder of the data files of named data sets, as published or as ``NAME.npz``.
        image_size: Resize image files to squares of this side.
        max_unreadable: Share of image files that may be unreadable.
        progress: Called while image files are decoded.
        spec: The specification that a client's own data must fit: image files are converted to its shape, and a
            folder may have only some of its classes.
        columns: The columns of a parquet file or of labels.csv that the user names.
        given: The data that were given from Python as ``python:NAME``.
        needs_test: If not, an .npz file need not have a test split, and no image of a parquet file is held out as one;
            the test split is then empty.

    Raises:
        UserError: If the name is unknown, or the data are missing, damaged or do not fit.
    """
    check_name(name, given)
    if image_size is not None and image_size < 1:
        raise UserError(f"data.image_size is {image_size}; it must be at least 1.", code="FEDAF-DATA-IMAGE-SIZE")
    if columns != Columns() and not name.startswith((FOLDER, PARQUET)):
        what = f"data.image_column, label_column, client_column and domain_column have no effect on {name}"
        raise wrong_column(f"{what}; they are for parquet:DIR and for folder:DIR with a labels.csv. Leave them out.")
    entry = _entry(name)
    known = entry if isinstance(entry, DatasetSpec) else None
    title, expected = (name, known) if spec is None else ("the federation", spec)
    read = partial(stored.read, title, spec=expected, image_size=image_size, max_unreadable=max_unreadable)
    try:
        if entry is not None and not isinstance(entry, DatasetSpec):
            return _in_memory(name, _made(name, entry, data_dir), image_size, spec)
        if given is not None:
            return _in_memory(name, given, image_size, spec)
        if known and known.load:
            stored.check_size(name, name, known.shape, image_size)
            return _loaded(name, known, checked(known.load(data_dir)))
        found = _find(name, data_dir, image_size, progress, spec, columns, needs_test)
        if found is None:
            raise not_found(_missing(name, data_dir, known))
        if isinstance(found, Source):
            data = cache.opened(found, partial(read, shown=found.root))
        else:
            data = read(found, shown=found)
        if needs_test and not len(data.test):
            what = f"{name} has no test split, only training images, as a condensed set has"
            remedy = "name the data set to test on with --test-dataset, or add x_test and y_test"
            raise UserError(f"{what}; {remedy}.", code="FEDAF-DATA-NO-TEST")
        return data
    except Damaged as error:
        expected_arrays = (
            "x_train, y_train, x_test and y_test (or train_images, train_labels, ... as MedMNIST has them)"
        )
        raise damaged(str(error), f"expected an .npz file with {expected_arrays}") from error
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
    columns: Columns = Columns(),  # noqa: B008
    needs_test: bool = True,
) -> Source | Path | None:
    """Return a file in the stored form, or how to convert the data to it."""
    if name.startswith(FOLDER):
        return folders.source(Path(name.removeprefix(FOLDER)), image_size, progress, spec, columns)
    if name.startswith(PARQUET):
        return parquet.source(Path(name.removeprefix(PARQUET)), image_size, progress, spec, columns, needs_test)
    known = find_spec(name)
    if known and known.load:
        return None
    for path in known.npz_files(data_dir) if known else [Path(name.removeprefix(NPZ))]:
        if path.is_file():
            return npz.source(path) or path
    return known.reader.find(known, data_dir, image_size, progress) if known and known.reader else None


def _made(name: str, factory: "Callable[..., Any]", data_dir: Path) -> object:
    """Call ``module:factory``: with the data folder if it needs an argument."""
    try:
        needs = any(
            each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
            for each in inspect.signature(factory).parameters.values()
        )
        return factory(data_dir) if needs else factory()
    except UserError:
        raise
    except Exception as error:  # custom code may raise anything
        what = f"the function {name!r} fails ({reason(error)})"
        remedy = "expected a function without arguments, or of the data folder, that returns the data"
        raise UserError(f"{what}; {remedy}.", code="FEDAF-DATA-FACTORY") from error


def _in_memory(name: str, given: object, image_size: int | None, spec: DatasetSpec | None) -> DataSet:
    data = as_dataset(given, name)
    stored.check_size(name, name, data.train.images.shape[1:], image_size)
    return data if spec is None else _loaded(name, spec, data)


def _loaded(name: str, spec: DatasetSpec, data: DataSet) -> DataSet:
    shape = tuple(data.train.images.shape[1:])
    if shape != spec.shape or data.num_classes != spec.num_classes:
        what = f"data set {name!r} loads images of shape {shape} and {data.num_classes} classes"
        raise UserError(f"{what}; its SPEC says {spec.shape} and {spec.num_classes}.", code="FEDAF-DATA-SPEC")
    return data


def _missing(name: str, data_dir: Path, known: DatasetSpec | None) -> str:
    """Say everywhere a data set was looked for, and how to get it."""
    if known is None:
        return f"data set {name!r}: there is no file {name.removeprefix(NPZ)}; give the path of an .npz file."
    places = ", ".join(map(str, known.places(data_dir)))
    verb = "downloads it" if known.files else "says where to get it"
    advice = f"`fedaf data fetch {name} --data-dir {quote(str(data_dir))}` {verb}"
    return f"data set {name!r} is in none of {places}; {advice}, or give the folder it is in with --data-dir."
