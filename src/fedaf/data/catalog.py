"""The data sets by name, as uint8 tensors with their published normalisation constants."""

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.naming import nearest
from fedaf.protocol import Key, UserError

_DIGITS_SPLIT = Key(20240617)  # the test split of digits is the same in every run, whatever its seed
_OWN_MEAN, _OWN_STD = 0.5, 0.25  # nobody in a federation holds the training split, so own data get constants


@dataclass(frozen=True)
class Entry:
    """What the catalog knows of a data set before reading it."""

    shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


CATALOG = {
    "digits": Entry((1, 8, 8), 10, (0.305,), (0.376,)),
    "fashionmnist": Entry((1, 28, 28), 10, (0.2860,), (0.3530,)),
    "cifar10": Entry((3, 32, 32), 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Entry((3, 32, 32), 100, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def check_name(name: str) -> None:
    """Raise ``UserError`` for a name that no reader knows."""
    if name not in CATALOG and not name.startswith("npz:"):
        allowed = f"one of {', '.join(CATALOG)}, or npz:FILE"
        raise UserError(f"unknown data set {name!r}{nearest(name, CATALOG)}; allowed is {allowed}.")


def load(name: str, data_dir: Path) -> DataSet:
    """Read a data set: ``digits`` comes with scikit-learn, the others as ``NAME.npz`` in ``data_dir`` or as
    ``npz:FILE``, with arrays x_train, y_train, x_test, y_test."""
    check_name(name)
    if name == "digits":
        return _digits()
    if name.startswith("npz:"):
        return _npz(name, Path(name.removeprefix("npz:")), None)
    return _npz(name, data_dir / f"{name}.npz", CATALOG[name])


def _digits() -> DataSet:
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = torch.from_numpy((raw.images * (255 / 16)).round().astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(raw.target.astype(np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool)
    rng = _DIGITS_SPLIT.numpy()
    for label in range(10):
        rows = rng.permutation(np.flatnonzero(raw.target == label))
        test[torch.from_numpy(rows[: round(len(rows) / 5)])] = True
    entry = CATALOG["digits"]
    train, held_out = Split(images[~test], labels[~test]), Split(images[test], labels[test])
    return DataSet("digits", train, held_out, 10, mean=entry.mean, std=entry.std)


def _npz(name: str, path: Path, entry: Entry | None) -> DataSet:
    if not path.is_file():
        advice = "put the file there or name its folder with --data-dir" if entry else "name a file that is there"
        raise UserError(f"data set {name!r} is not at {path}; {advice}.")
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {key: found[key] for key in ("x_train", "y_train", "x_test", "y_test")}
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{path} is not a data set: it must be a whole .npz file with x_train, y_train, x_test and y_test."
        ) from error
    train_images, test_images = (_images(path, key, arrays[key]) for key in ("x_train", "x_test"))
    train_labels, test_labels = (_labels(path, key, arrays) for key in ("y_train", "y_test"))
    channels = train_images.shape[1]
    shape = tuple(train_images.shape[1:])
    if entry and shape != entry.shape:
        raise UserError(f"{path} holds images of shape {shape}, but {name} has {entry.shape}.")
    if tuple(test_images.shape[1:]) != shape:
        raise UserError(f"x_test in {path} holds images of shape {tuple(test_images.shape[1:])}, but x_train {shape}.")
    num_classes = entry.num_classes if entry else min(len(train_labels), int(train_labels.max()) + 1)
    for key, labels in (("y_train", train_labels), ("y_test", test_labels)):
        if int(labels.max()) >= num_classes:
            raise UserError(
                f"{key} in {path} has a label {int(labels.max())}, but the last class is {num_classes - 1}."
            )
    return DataSet(
        name,
        Split(train_images, train_labels),
        Split(test_images, test_labels),
        num_classes,
        mean=entry.mean if entry else (_OWN_MEAN,) * channels,
        std=entry.std if entry else (_OWN_STD,) * channels,
    )


def _images(path: Path, key: str, array: np.ndarray) -> Tensor:
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or len(array) == 0:
        raise UserError(f"{key} in {path} must be uint8 [N, H, W, C], not {array.dtype} {list(array.shape)}.")
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] > 4 >= array.shape[1]:
        raise UserError(f"{key} in {path} looks like [N, C, H, W], {list(array.shape)}; it must be [N, H, W, C].")
    return torch.from_numpy(np.ascontiguousarray(array.transpose(0, 3, 1, 2)))


def _labels(path: Path, key: str, arrays: dict[str, np.ndarray]) -> Tensor:
    labels, images = arrays[key], arrays[key.replace("y_", "x_")]
    if labels.ndim != 1 or len(labels) != len(images) or labels.dtype.kind not in "iu" or labels.min() < 0:
        raise UserError(f"{key} in {path} must hold one label >= 0 for each of the {len(images)} images.")
    return torch.from_numpy(labels.astype(np.int64))
