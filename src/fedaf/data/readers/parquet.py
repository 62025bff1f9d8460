"""Parquet files of encoded images, as Hugging Face publishes image data sets.

An image is a struct with ``bytes``, or the bytes themselves. Splits are recognised by file or folder name:
``train-00000-of-00001.parquet`` or ``train/0000.parquet``; without a name for the test split, by a split column. Class
names come from the schema, if it has them.
"""

import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedaf.common.naming import printable
from fedaf.data.labels import one_per_image, resolve
from fedaf.data.problems import damaged, not_found, table, wrong_column, wrong_labels, wrong_layout
from fedaf.data.readers.columns import Role, find, in_order, part_of, require, splits, train_and_test
from fedaf.data.readers.folders import check_convertible
from fedaf.data.readers.images import Encoded, Shape, Tally, decode_all, quietly, target
from fedaf.data.readers.trees import held_out, record_rows, write_tally
from fedaf.data.spec import Columns, DatasetSpec, Progress
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import Writer
from fedaf.protocol import UserError

log = logging.getLogger(__name__)
# A few bytes of a file can stand for many and large values, so that only some are in memory, and their size is limited.
_IMAGES = 16  # encoded images that are read at a time
_MAX_IMAGE = 64 << 20  # bytes of an encoded image
_TEXTS = 256  # rows of other columns that are read at a time
_MAX_TEXT = 1000  # bytes of a label, client, domain or split
_NO_BYTES = b""  # is reported as an unreadable image


def source(
    path: Path,
    image_size: int | None,
    progress: Progress,
    spec: DatasetSpec | None,
    columns: Columns,
    needs_test: bool = True,
) -> Source:
    """Return how to convert a parquet file, or a folder of them; with ``spec``, to its shape.

    If no test split is needed and the files name none, all images are training images.

    Raises:
        UserError: If there are no such files, or their splits are unclear.
    """
    _arrow()
    if spec:
        check_convertible(path, spec)
    files = _files(path)
    used = [file for part in files.values() for file in part]
    shape = spec.shape if spec else None
    write = partial(_write, path, files, image_size, shape, columns, progress, needs_test)
    options = (image_size, *(shape or ()), *astuple(columns), *(() if needs_test else ("train only",)))
    return Source("parquet 2", path, used, write, options)


def _files(path: Path) -> dict[str, list[Path]]:
    """Return the files of the splits train and test; without a test split only those for training."""
    if path.is_file():
        return {"train": [path]}
    if not path.is_dir():
        raise not_found(f"there is no file or folder {path}; give a parquet file, or a folder of them.")
    found: dict[str, list[Path]] = defaultdict(list)
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            if name.endswith(".parquet") and not name.startswith("."):
                file = Path(folder) / name
                # The folder counts too: datasets names converted files train/0000.parquet.
                part = part_of(re.split(r"[-_.\d]", name, maxsplit=1)[0]) or part_of(file.parent.name) or "unnamed"
                found[part].append(file)
    if not found:
        raise wrong_layout(f"{path} has no .parquet files; expected train-*.parquet and test-*.parquet.")
    _check_one_data_set(path, found)
    if not found["train"]:
        if set(found) - {"train"} != {"unnamed"}:
            raise wrong_layout(f"{path} has no training files; expected train-*.parquet, or a folder train/.")
        return {"train": sorted(found["unnamed"])}
    for part in ("validation", "unnamed"):
        if found[part] and (found["test"] or part == "unnamed"):
            log.warning("%s: %s and other files of that split are not used", path, found[part][0].name)
    if found["validation"] and not found["test"]:
        log.warning("%s has no split test; its split validation is the test set", path)
    test = found["test"] or found["validation"]
    return {"train": sorted(found["train"]), **({"test": sorted(test)} if test else {})}


def _check_one_data_set(path: Path, found: Mapping[str, Sequence[Path]]) -> None:
    """Refuse a folder with several configurations, as some data sets of Hugging Face have them."""
    folders = {
        file.parent.parent if part_of(file.parent.name) else file.parent for files in found.values() for file in files
    }
    if len(folders) > 1:
        names = ", ".join(printable(str(folder.relative_to(path))) for folder in sorted(folders))
        raise wrong_layout(f"{path} has parquet files in the folders {names}; give one of these folders.")


@dataclass(frozen=True)
class _Table:
    """The files of one split, and all their columns but the images."""

    root: Path
    files: Sequence[Path]
    image: str
    values: Mapping[str, np.ndarray]  # by role: label, client, domain, split
    rows: np.ndarray  # those that belong to the split

    def images(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the encoded image of each row of the split."""
        wanted, number = set(self.rows.tolist()), 0
        for file in self.files:
            shown = file.name if file == self.root else file.relative_to(self.root).as_posix()
            row = 0
            for batch in _batches(file, [self.image], _IMAGES, _MAX_IMAGE):
                for scalar in batch.column(0):
                    if number in wanted:
                        value = scalar.as_py()
                        content = value.get("bytes") if isinstance(value, dict) else value
                        yield f"row {row} of {shown}", content or _NO_BYTES
                    row += 1
                    number += 1


def _write(
    path: Path,
    files: Mapping[str, Sequence[Path]],
    side: int | None,
    given: Shape | None,
    columns: Columns,
    progress: Progress,
    needs_test: bool,
    writer: Writer,
) -> None:
    try:
        named = "test" in files
        parts = {part: _read(path, paths, columns, with_splits=not named) for part, paths in files.items()}
        schema = _open(files["train"][0]).schema_arrow
        if named and (unused := splits(schema.names, columns)):
            log.warning("%s: the files are the splits; the column %s is not used", path, printable(unused[0]))
        names = _class_names(schema, files["train"][0], columns)
        if names and given:  # a federation may number its classes in another order
            parts = {part: _with_names(found, names) for part, found in parts.items()}
        elif names:
            writer.texts("classes", names)
        if not named:
            parts = _split(path, parts["train"], needs_test)
        _write_parts(path, parts, side, given, progress, writer)
    except _arrow().ArrowException as error:
        raise damaged(f"{path} cannot be read as parquet ({printable(str(error)):.200})") from error


def _with_names(found: _Table, names: Sequence[str]) -> _Table:
    """Replace the numbers of classes by their names."""
    numbers, _ = resolve("label", {f"the label column of {found.files[0]}": found.values["label"]}, names)
    return replace(found, values={**found.values, "label": np.array(names)[numbers[0].numpy()]})


def _write_parts(
    path: Path, parts: Mapping[str, _Table], side: int | None, given: Shape | None, progress: Progress, writer: Writer
) -> None:
    def everything() -> Iterator[Encoded]:
        return (content for part in parts.values() for _, content in part.images())

    if empty := [name for name, part in parts.items() if not len(part.rows)]:
        raise wrong_layout(f"{path} has no rows of the split {empty[0]}; add some.")
    tally = Tally(sum(len(part.rows) for part in parts.values()))
    kept: dict[str, list[int]] = {part: [] for part in parts}
    with quietly():
        size, mode = target(path, everything, side, False, given)
        shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
        for name, part in parts.items():
            pieces = decode_all(part.images(), mode=mode, size=size, tally=tally, progress=progress)
            if not writer.images(f"x_{name}", shape, record_rows(pieces, kept[name])):
                what = f"none of the {len(part.rows)} images of the {name} split of {path} can be read"
                _, reason = tally.failures[-1]  # of this split, because all its images failed
                raise UserError(f"{what} ({reason}); the images must be in the files.", code="FEDAF-DATA-UNREADABLE")
    values = {name: {role: v[part.rows][kept[name]] for role, v in part.values.items()} for name, part in parts.items()}
    for name in parts:
        writer.array(f"y_{name}", values[name]["label"])
    for role, of in (("domain", tuple(parts)), ("client", ("train",))):
        if all(role in values[name] for name in of):
            texts = {f"{role} of {name}": values[name][role].astype(str) for name in of}
            numbers, names = resolve(role, texts, in_order(np.concatenate(list(texts.values())).tolist()))
            for name, found in zip(of, numbers, strict=True):
                writer.array(f"{role}_{name}", found.numpy())
            writer.texts(f"{role}s", map(printable, names))
    write_tally(tally, writer)


def _read(root: Path, files: Sequence[Path], given: Columns, *, with_splits: bool) -> _Table:
    """Read all columns but the images; a split column only if ``with_splits``."""
    first = _open(files[0]).schema_arrow
    image, label = _image_column(first, files[0], given), _label_column(first, files[0], given)
    optional: tuple[Role, ...] = ("client", "domain", "split") if with_splits else ("client", "domain")
    roles = {"label": label, **{role: find(role, first.names, given, files[0]) for role in optional}}
    used = {role: name for role, name in roles.items() if name}
    log.info("%s: image is %s, %s", files[0], image, ", ".join(f"{role} is {name}" for role, name in used.items()))
    parts: dict[str, list[np.ndarray]] = defaultdict(list)
    for file in files:
        schema = _open(file).schema_arrow
        if missing := [name for name in (image, *used.values()) if name not in schema.names]:
            raise wrong_column(
                f"{file} has no column {missing[0]}, but {files[0].name} has one; give files of one set."
            )
        names = list(dict.fromkeys(used.values()))
        fields = _arrow().schema([schema.field(name) for name in names])
        rows = _arrow().Table.from_batches(list(_batches(file, names, _TEXTS, _MAX_TEXT)), fields)
        for role, name in used.items():
            where = f"the column {name} of {file}"
            column = _values(rows.column(name), where)
            parts[role].append(_splits(column, where) if role == "split" else column)
    for role, name in used.items():
        if len({column.dtype.kind for column in parts[role]}) > 1:
            what = f"the column {name} has names in some files of {root} and numbers in others"
            raise wrong_labels(f"{what}; use one of them in all files.")
    values = {role: np.concatenate(found) for role, found in parts.items()}
    return _Table(root, files, image, values, np.arange(len(values["label"])))


def _batches(file: Path, names: Sequence[str], rows: int, most: int) -> Iterator[Any]:
    """Yield columns, some rows at a time.

    Raises:
        UserError: If a text, or the bytes of an image, are larger than ``most`` bytes.
    """
    first = 0
    for batch in _open(file).iter_batches(batch_size=rows, columns=names):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            sizes = _sizes(column)
            if len(large := np.flatnonzero(sizes > most)):
                what = f"the column {name} of {file} has {sizes[large[0]]:,} bytes in row {first + large[0]}"
                raise damaged(what, f"expected at most {most:,}; leave out that row")
        first += len(batch)
        yield batch


def _sizes(column: Any) -> np.ndarray:
    """Return the bytes of each text or encoded image of a column; nothing for a column of numbers."""
    import pyarrow.compute as compute

    types = _arrow().types
    if types.is_dictionary(column.type):  # without a copy of the text for each row
        sizes = _sizes(column.dictionary)
        return sizes[compute.fill_null(column.indices, 0).to_numpy()] if len(sizes) else sizes
    if types.is_struct(column.type) and column.type.get_field_index("bytes") >= 0:
        column = compute.struct_field(column, "bytes")
    sized = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(is_sized(column.type) for is_sized in sized):
        return np.empty(0, np.int64)
    sizes = compute.fill_null(compute.binary_length(column), 0)
    return np.asarray(sizes)


def _values(column: Any, where: str) -> np.ndarray:
    """Return a column of numbers or names."""
    arrow = _arrow()
    if column.null_count:
        row = next(row for row, value in enumerate(column.to_pylist()) if value is None)
        raise wrong_labels(f"{where} has no value in row {row}; every image needs one.")
    kind = column.type
    if arrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind):
        what = f"{where} is {kind}; expected one label for each image, multi-label data are not supported"
        raise wrong_labels(f"{what} (use a column with one label).")
    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        return np.array(column.to_pylist(), dtype=np.str_)
    return one_per_image(where, column.to_numpy(), len(column))


def _splits(values: np.ndarray, where: str) -> np.ndarray:
    """Return ``train``, ``test`` or ``validation`` for each row."""
    given, numbers = np.unique(values.astype(str), return_inverse=True)
    parts = [part_of(name) for name in given.tolist()]
    if None in parts:
        row = int(np.flatnonzero(numbers == parts.index(None))[0])
        what = f"{where} has the split {printable(str(values[row]))!r:.80} in row {row}"
        raise wrong_labels(f"{what}; expected train, test or validation.")
    return np.array(parts, np.str_)[numbers]


def _image_column(schema: Any, file: Path, given: Columns) -> str:
    """Return the column that the schema of Hugging Face names an image, else one with image bytes."""
    if given.image is None:
        declared = [name for name, feature in _features(schema).items() if feature.get("_type") == "Image"]
        encoded = [name for name in (declared or schema.names) if name in schema.names and _holds_bytes(schema, name)]
        if len(encoded) == 1:
            return encoded[0]
        if not encoded:
            raise table(f"{file} has the columns {', '.join(map(printable, schema.names))} and no image bytes")
        return require("image", encoded, given, file)
    name = require("image", schema.names, given, file)
    if not _holds_bytes(schema, name):
        what = f"the column {name} of {file} is {schema.field(name).type}"
        raise wrong_column(f"{what}; expected image bytes, or a struct with 'bytes' as Hugging Face has it.")
    return name


def _holds_bytes(schema: Any, name: str) -> bool:
    types, kind = _arrow().types, schema.field(name).type
    if types.is_struct(kind):
        index = kind.get_field_index("bytes")
        kind = kind.field(index).type if index >= 0 else kind
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _label_column(schema: Any, file: Path, given: Columns) -> str:
    if given.label is None:
        declared = [name for name, feature in _features(schema).items() if feature.get("_type") == "ClassLabel"]
        if len(declared) == 1 and declared[0] in schema.names:
            return declared[0]
    return require("label", schema.names, given, file)


def _class_names(schema: Any, file: Path, given: Columns) -> list[str]:
    """Return the class names that the schema of Hugging Face has for the label column."""
    names = _features(schema).get(_label_column(schema, file, given), {}).get("names")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _features(schema: Any) -> dict[str, dict[str, Any]]:
    """Return the features that Hugging Face wrote into the metadata of a schema."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _split(path: Path, whole: _Table, needs_test: bool) -> dict[str, _Table]:
    """Split by the split column, or without test rows hold out a fifth of each class of each domain, if needed."""
    if "split" not in whole.values:
        return _hold_out(path, whole) if needs_test else {"train": whole}
    by_part = {part: np.flatnonzero(whole.values["split"] == part).tolist() for part in ("train", "test", "validation")}
    train, test = train_and_test(path, by_part)
    if not test:
        return _hold_out(path, whole) if needs_test else {"train": whole}
    return {part: replace(whole, rows=np.array(rows)) for part, rows in (("train", train), ("test", test))}


def _hold_out(path: Path, whole: _Table) -> dict[str, _Table]:
    """Hold out a fifth of each class of each domain for testing."""
    labels = whole.values["label"].astype(str).tolist()
    domains = whole.values["domain"].astype(str).tolist() if "domain" in whole.values else [""] * len(labels)
    test = np.array(sorted(held_out(list(zip(domains, labels, strict=True)))), np.int64)
    if not len(test):
        raise wrong_layout(f"{path} has too few images to hold out a fifth of each class for testing; add images.")
    train = np.setdiff1d(whole.rows, test)
    return {"train": replace(whole, rows=train), "test": replace(whole, rows=test)}


def _open(file: Path) -> Any:
    _arrow()
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(file)


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise no_pyarrow() from error
    return pyarrow


def no_pyarrow() -> UserError:
    """Return the error for parquet files without pyarrow."""
    what = "parquet files need pyarrow, which is not installed; install it with pip install pyarrow."
    return UserError(what, code="FEDAF-DATA-PYARROW")
