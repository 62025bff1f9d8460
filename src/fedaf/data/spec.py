"""The specification of a data set: everything that is known before any of its files is read."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedaf.data.dataset import DataSet
    from fedaf.data.storage.cache import Source

NO_DATA = "none"  # data.name of a server that has no data: only its clients have data
NPZ, FOLDER, PARQUET = "npz:", "folder:", "parquet:"
PATHS = (NPZ, FOLDER, PARQUET)  # prefixes of data.name before a path
PYTHON = "python:"  # prefix of data.name of data that were given from Python

#: The augmentations for photographs, chosen on held-out training images of CIFAR-10; docs/RESULTS.md has the table.
AUGMENT = ["flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation"]

#: FedAF+ has one value for all data sets where the paper has values by data set, chosen on CIFAR-10.
FEDAF_PLUS = {"lambda_loc": 1.0, "lambda_glob": 0.01}

#: Normalisation constants for photographs and drawings: those of ImageNet.
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

_CUSTOM_MEAN, _CUSTOM_STD = 0.5, 0.25  # constants, because no site of a federation has the whole training split

#: What is said of data whose licence is not known here.
UNKNOWN_LICENCE = "unknown, ask the source"

#: Called with the number of decoded image files and the number of all files.
Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Columns:
    """The columns of a table of images (parquet, or labels.csv) by name; ``None``: a column with a usual name."""

    image: str | None = None
    label: str | None = None
    client: str | None = None
    domain: str | None = None


@dataclass(frozen=True)
class OfficialFile:
    """One file to download; ``folder`` is the folder that an archive unpacks to, ``None`` for other files."""

    url: str
    sha256: str
    size: int
    folder: str | None = None

    @property
    def name(self) -> str:
        """The file name on disk; the server cannot choose it."""
        return self.url.rpartition("/")[2]


class Reader(Protocol):
    """Finds the published files of a data set and converts them to the stored form."""

    def places(self, spec: "DatasetSpec", data_dir: Path) -> list[Path]:
        """Return the folders that may hold the files, in search order."""

    def find(self, spec: "DatasetSpec", data_dir: Path, image_size: int | None, progress: Progress) -> "Source | None":
        """Return how to convert the files, or ``None`` if none of the places holds any."""


@dataclass(frozen=True)
class DatasetSpec:
    """A data set by name. A new one is one module with a ``SPEC``, named ``module:SPEC`` in ``data.name``.

    Its data come from ``DATA_DIR/NAME.npz``, else from ``reader``; or from ``load`` alone.

    Args:
        shape: Channels, height and width of an image.
        num_classes: Number of classes.
        mean: Published normalisation mean by channel, for pixels in [0, 1].
        std: Published normalisation standard deviation by channel.
        classes: Class names in label order; empty if only the files name them.
        domains: Domain names, if the data set has domains.
        resized: Whether the images are files of many sizes; ``shape`` is then the default size.
        name: Name of its folder and of its .npz file.
        title: Name for tables and figures: ``"CIFAR-10"``.
        samples: Training and test samples, as ``fedaf data list`` shows them.
        arrays: Names of further .npz files (without the ending) that may hold it.
        reader: Finds and converts the published files.
        load: Loads the data set from a data folder, without a reader and without conversion.
        origin: Where ``load`` takes the data from, if nothing has to be downloaded.
        files: The official files to download.
        homepage: Where to get the files by hand, if they cannot be downloaded by a program.
        licence: The licence or terms that its authors state, for cards of what is made from it.
        source: Who made it and where it is published.
        paper: The paper's settings for presets, in tables ``run``, ``training`` and one for each family of methods.
    """

    shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    resized: bool = False
    name: str = ""
    title: str = ""
    samples: str = ""
    arrays: tuple[str, ...] = ()
    reader: Reader | None = None
    load: "Callable[[Path], DataSet] | None" = None
    origin: str = ""
    files: tuple[OfficialFile, ...] = ()
    homepage: str = ""
    licence: str = UNKNOWN_LICENCE
    source: str = ""
    paper: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def training_samples(self) -> int | None:
        """The number of training samples that ``samples`` begins with; ``None`` if it does not tell."""
        number = re.match(r"\d+", self.samples)
        return int(number[0]) if number else None

    def npz_files(self, data_dir: Path) -> list[Path]:
        """Return the .npz files that may hold the data set."""
        return [data_dir / f"{stem}.npz" for stem in (self.name, *self.arrays)]

    def places(self, data_dir: Path) -> list[Path]:
        """Return every file and folder where the data set is looked for."""
        return [*self.npz_files(data_dir), *(self.reader.places(self, data_dir) if self.reader else [])]


def custom_spec(shape: tuple[int, int, int], classes: tuple[str, ...]) -> DatasetSpec:
    """Return the specification of data that have no name: ``npz:``, ``folder:``, ``parquet:`` and from Python."""
    return DatasetSpec(shape, len(classes), (_CUSTOM_MEAN,) * shape[0], (_CUSTOM_STD,) * shape[0], classes)
