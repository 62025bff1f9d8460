"""Named bundles of settings by data set: ``paper`` (the default) and ``quick``."""

from collections.abc import Mapping
from typing import Any

from fedaf.common.naming import nearest
from fedaf.errors import UserError

PRESETS = {
    "paper": "the paper's values for the data set; for digits and own data, what we settled",
    "quick": "a few short rounds, to see everything work",
}

#: For photographs and the like, chosen on held-out training images of CIFAR-10; docs/RESULTS.md has the table.
AUGMENT = ["flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation"]

# Which methods take the values under these names.
_FAMILIES = {
    "condensing": ("fedaf", "feddm"),
    "averaging": ("fedavg", "fedprox", "fedbn", "moon", "feddyn", "fedgen"),
}

# What the paper states for each data set; everything else is the default of an option.
_DOMAINS: dict[str, dict[str, Any]] = {
    "run": {"rounds": 10},
    "training": {"augment": AUGMENT},
    "condensing": {"ipc": 20},
    "fedaf": {"image_lr": 1.0, "lambda_loc": 0.01, "lambda_glob": 0.1},
}
_PAPER: dict[str, dict[str, dict[str, Any]]] = {
    "cifar10": {
        "training": {"augment": AUGMENT},
        "fedaf": {"image_lr": 1.0, "lambda_loc": 1e-4, "lambda_glob": 0.01},
    },
    "cifar100": {
        "condensing": {"init_mean_of": 5},  # means of 10 did worse on held-out images
        "training": {"augment": AUGMENT},
        "fedaf": {"image_lr": 0.1, "lambda_loc": 1e-4, "lambda_glob": 0.01},
    },
    "fashionmnist": {  # its held-out images were better recognised without augmentation
        "fedaf": {"image_lr": 0.2, "lambda_loc": 1e-3, "lambda_glob": 2.0},
    },
    "domainnet": _DOMAINS,
    "pacs": _DOMAINS,  # what stands in for DomainNet gets its values
    "digits": {
        "run": {"rounds": 10},
        "condensing": {
            "ipc": 10,
            "local_steps": 50,
            "real_batch": 64,  # a client holds at most 146 digits of a class
            "image_lr": 1.0,
            "continue_images": False,
            "server_lr": 0.01,
            "server_epochs": 30,
            "server_batch": 64,
        },
    },
}

_QUICK: dict[str, dict[str, Any]] = {
    "run": {"rounds": 3},
    "condensing": {
        "ipc": 10,
        "local_steps": 20,
        "real_batch": 64,
        "server_epochs": 20,
        "server_batch": 64,
        "server_lr": 0.01,
    },
    "averaging": {"local_epochs": 2},
}


def preset_values(preset: str, dataset: str, method: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables a preset fills in for one data set and one method."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}{nearest(preset, PRESETS)}; allowed is {' or '.join(PRESETS)}.")
    layers = [_PAPER.get(dataset, {})] + ([_QUICK] if preset == "quick" else [])
    values: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for name in ("run", "training"):
            values.setdefault(name, {}).update(layer.get(name, {}))
        for family, members in _FAMILIES.items():
            values.setdefault("method", {}).update(layer.get(family, {}) if method in members else {})
        values["method"].update(layer.get(method, {}))
    return values
