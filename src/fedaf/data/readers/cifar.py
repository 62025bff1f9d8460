"""CIFAR-10 and CIFAR-100 as published: batches as pickles ("python version") or as rows of bytes ("binary version")."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from fedaf.data.problems import damaged, incomplete
from fedaf.data.readers import arrays_only
from fedaf.data.spec import DatasetSpec, Progress
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import CHUNK, Writer

_PIXELS = 3 * 32 * 32

_Batches = Iterator[tuple[np.ndarray, np.ndarray]]  # pixels and labels


@dataclass(frozen=True)
class CifarReader:
    """Reads one of the two published versions, the python version if both are there.

    Args:
        train: The training files; in the binary version their names end in ``.bin``.
        test: The same for the test files.
        python: The folder of the python version, and its file with the class names.
        binary: The same for the binary version.
        labels_key: The labels in the pickles.
        names_key: The class names in the pickles.
        label_bytes: Bytes before the pixels of an image in the binary version; the last of them is the label.
    """

    train: tuple[str, ...]
    test: tuple[str, ...]
    python: tuple[str, str]
    binary: tuple[str, str]
    labels_key: bytes
    names_key: bytes
    label_bytes: int

    def places(self, spec: DatasetSpec, data_dir: Path) -> list[Path]:
        parents = (data_dir / spec.name, data_dir)
        return [*(parent / folder for folder in (self.python[0], self.binary[0]) for parent in parents), *parents]

    def find(self, spec: DatasetSpec, data_dir: Path, image_size: int | None, progress: Progress) -> Source | None:
        for folder in self.places(spec, data_dir):
            for ending, (published, names) in (("", self.python), (".bin", self.binary)):
                # A folder with the published name holds the data set; another one does if it has the first file.
                is_published = folder.name == published and folder.is_dir()
                if is_published or (folder / f"{self.train[0]}{ending}").is_file():
                    return self._source(spec, folder, ending, folder / names)
        return None

    def _source(self, spec: DatasetSpec, folder: Path, ending: str, names: Path) -> Source:
        parts = {"train": self.train, "test": self.test}
        files = {part: [folder / f"{name}{ending}" for name in names] for part, names in parts.items()}
        everything = [*files["train"], *files["test"]]
        if missing := ", ".join(path.name for path in everything if not path.is_file()):
            raise incomplete(f"{folder} holds {spec.name} without {missing}")
        return Source("cifar 1", folder, [*everything, names], partial(self._write, files, names, spec.num_classes))

    def _write(self, files: Mapping[str, Sequence[Path]], names: Path, num_classes: int, writer: Writer) -> None:
        for part, paths in files.items():
            labels: list[np.ndarray] = []
            writer.images(f"x_{part}", (32, 32, 3), self._images(paths, labels))
            writer.array(f"y_{part}", np.concatenate(labels))
        if names.is_file():
            classes = self._names(names)
            if len(classes) != num_classes:
                raise damaged(f"{names} names {len(classes)} classes; expected {num_classes}")
            writer.texts("classes", classes)

    def _images(self, paths: Sequence[Path], labels: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield images with channels last, chunk by chunk, and append their labels to the list."""
        step = CHUNK // _PIXELS
        for path in paths:
            for pixels, numbers in self._rows(path) if path.suffix == ".bin" else self._pickled(path):
                labels.append(numbers)
                for first in range(0, len(pixels), step):
                    yield pixels[first : first + step].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)

    def _pickled(self, path: Path) -> _Batches:
        batch = arrays_only.load(path)
        pixels, labels = batch.get(b"data"), batch.get(self.labels_key)
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
            raise damaged(f"data in {path} must be uint8 [N, {_PIXELS}]")
        if isinstance(labels, list) and all(type(label) is int and 0 <= label < 256 for label in labels):
            labels = np.array(labels)
        if not isinstance(labels, np.ndarray) or labels.shape != pixels.shape[:1]:
            raise damaged(f"{self.labels_key.decode()} in {path} must be a label for each of the {len(pixels)} images")
        yield pixels, labels.astype(np.int64)

    def _rows(self, path: Path) -> _Batches:
        row, size = self.label_bytes + _PIXELS, path.stat().st_size
        if size == 0 or size % row:
            raise damaged(f"{path} has {size:,} bytes, which is not a multiple of {row}")
        with open(path, "rb") as file:
            while data := file.read(row * (CHUNK // row)):
                rows = np.frombuffer(data, np.uint8).reshape(-1, row)
                yield rows[:, self.label_bytes :], rows[:, self.label_bytes - 1].astype(np.int64)

    def _names(self, path: Path) -> list[str]:
        if path.name == self.binary[1]:
            return path.read_text(errors="replace").split()
        given = arrays_only.load(path).get(self.names_key)
        names = given if isinstance(given, list) else []
        return [name.decode(errors="replace") for name in names if isinstance(name, bytes)]
