"""The handwritten digits that come with scikit-learn: 8x8 grey images of 10 classes."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedaf.data.dataset import DataSet, Split
from fedaf.data.problems import not_found
from fedaf.data.spec import DatasetSpec
from fedaf.protocol import Key

_SPLIT_KEY = Key(20240617)  # the test split is the same in every run, independent of its seed


def _load(data_dir: Path) -> DataSet:
    table = np.loadtxt(_file(), delimiter=",")
    pixels, targets = table[:, :-1].reshape(-1, *SPEC.shape), table[:, -1].astype(np.int64)
    images, labels = torch.from_numpy((pixels * (255 / 16)).round().astype(np.uint8)), torch.from_numpy(targets)
    test = torch.zeros(len(labels), dtype=torch.bool)
    rng = _SPLIT_KEY.numpy()
    for label in range(SPEC.num_classes):
        rows = rng.permutation(np.flatnonzero(targets == label))
        test[torch.from_numpy(rows[: round(len(rows) / 5)])] = True
    train, held_out = Split(images[~test], labels[~test]), Split(images[test], labels[test])
    return DataSet(SPEC.name, train, held_out, SPEC.num_classes, SPEC.mean, SPEC.std, SPEC.classes)


def _file() -> Path:
    """Locate scikit-learn's file without importing scikit-learn, which would slow down the start of every client."""
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise not_found("the data set 'digits' comes with scikit-learn, which is not installed; install it.")
    return Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"


SPEC = DatasetSpec(
    name="digits",
    title="Digits",
    samples="1438 + 359",
    shape=(1, 8, 8),
    num_classes=10,
    mean=(0.305,),
    std=(0.376,),
    classes=tuple("0123456789"),
    load=_load,
    licence="CC BY 4.0",
    source="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, "
    "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    origin="inside scikit-learn",
    paper={  # not a data set of the paper: our choice
        "run": {"rounds": 10},
        "condensing": {
            "ipc": 10,
            "local_steps": 50,
            "real_batch": 64,  # a client has at most 146 digits of a class
            "image_lr": 1.0,
            "init": "clusters",
            "continue_images": False,
            "server_lr": 0.01,
            "server_epochs": 30,
            "server_batch": 64,
        },
        "fedaf-plus": {"rho": 2.0, "server_steps": 200},  # chosen on held-out training images
    },
)
