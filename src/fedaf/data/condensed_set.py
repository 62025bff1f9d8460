"""A condensed set as a file: the images that a server trained on, with their labels and origin."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from PIL import Image
from torch import Tensor

from fedaf.common.naming import nearest
from fedaf.data.dataset import DataSet, Split
from fedaf.data.readers.parquet import no_pyarrow
from fedaf.data.spec import custom_spec
from fedaf.protocol import UserError

_PNG_CHANNELS = (1, 3)


@dataclass(frozen=True, repr=False)
class CondensedSet:
    """Condensed images with their labels and where each came from.

    Args:
        images: uint8 [N, C, H, W].
        labels: int64 [N].
        classes: Names of all classes, in label order.
        clients: The client that each image came from.
        rounds: The round that each image came from, int64 [N].
        weights: How often the server drew each image, relative to the others, float64 [N]; ``None``: all alike.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    clients: tuple[str, ...]
    rounds: Tensor
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.images.shape[1:]))
        return f"CondensedSet({len(self)} images {shape} of {len(self.classes)} classes)"

    @property
    def per_class(self) -> dict[str, int]:
        """The number of images of each class, by its name."""
        counts = self.labels.bincount(minlength=len(self.classes)).tolist()
        return dict(zip(self.classes, counts, strict=True))

    def as_dataset(self, name: str) -> DataSet:
        """Return the images as the data set ``name``, whose test split is empty."""
        channels, height, width = self.images.shape[1:]
        spec = custom_spec((channels, height, width), self.classes)
        train = Split(self.images, self.labels)
        return DataSet(name, train, train.take(train.labels[:0]), spec.num_classes, spec.mean, spec.std, spec.classes)


def to_bytes(condensed: CondensedSet, format: str) -> bytes:
    """Return a condensed set as the content of a file, which ``--dataset npz:FILE`` or ``parquet:FILE`` reads.

    Args:
        condensed: The set.
        format: ``npz`` or ``parquet``. The pixels are the same in both.

    Raises:
        UserError: The format is unknown, pyarrow is missing, or the images have neither one nor three channels, which
            parquet needs.
    """
    check_format(format)
    return FORMATS[format](condensed)


def check_format(format: str) -> None:
    """Raise ``UserError`` if condensed sets are not written in this format."""
    if format not in FORMATS:
        what = f"unknown format {format!r}{nearest(format, FORMATS)} for a condensed set"
        raise UserError(f"{what}; expected one of {', '.join(FORMATS)}.", code="FEDAF-EXPORT-FORMAT")


def _npz(condensed: CondensedSet) -> bytes:
    """The stored form of a data set without a test split."""
    names = sorted(set(condensed.clients))
    arrays = {
        "x_train": condensed.images.permute(0, 2, 3, 1).contiguous().numpy(),
        "y_train": condensed.labels.numpy(),
        "classes": np.array(condensed.classes, dtype=np.str_),
        "client_train": np.array([names.index(client) for client in condensed.clients], dtype=np.int64),
        "clients": np.array(names, dtype=np.str_),
        "round_train": condensed.rounds.numpy(),
    }
    if condensed.weights is not None:
        arrays["weight_train"] = condensed.weights.numpy()
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def _parquet(condensed: CondensedSet) -> bytes:
    """One row per image, encoded as PNG, with the schema of Hugging Face."""
    if problem := parquet_problem(condensed):
        raise problem
    import pyarrow
    import pyarrow.parquet

    columns = {
        "image": [{"bytes": _png(image), "path": None} for image in condensed.images],
        "label": condensed.labels.tolist(),
        "client": list(condensed.clients),
        "round": condensed.rounds.tolist(),
    }
    features: dict[str, Mapping[str, object]] = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": list(condensed.classes)},
        "client": {"dtype": "string", "_type": "Value"},
        "round": {"dtype": "int64", "_type": "Value"},
    }
    if condensed.weights is not None:
        columns["weight"] = condensed.weights.tolist()
        features["weight"] = {"dtype": "float64", "_type": "Value"}
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    arrays = {name: pyarrow.array(values, kind if name == "image" else None) for name, values in columns.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays).replace_schema_metadata(metadata), file)
    return file.getvalue()


def parquet_problem(condensed: CondensedSet) -> UserError | None:
    """Return why a set cannot be written as parquet; ``None`` if it can."""
    if find_spec("pyarrow") is None:
        return no_pyarrow()
    if (channels := condensed.images.shape[1]) not in _PNG_CHANNELS:
        what = f"the images have {channels} channels, and those in parquet files have 1 or 3"
        return UserError(f"{what}; use the format npz.", code="FEDAF-EXPORT-CHANNELS")
    return None


def _png(image: Tensor) -> bytes:
    pixels, file = image.permute(1, 2, 0).contiguous().numpy(), io.BytesIO()
    Image.fromarray(pixels[..., 0] if len(image) == 1 else pixels).save(file, format="PNG")
    return file.getvalue()


#: The writer of each format.
FORMATS: Mapping[str, Callable[[CondensedSet], bytes]] = {"npz": _npz, "parquet": _parquet}
