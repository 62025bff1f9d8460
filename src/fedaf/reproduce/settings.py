"""The table of settings: choices that the paper leaves open, tried on held-out training images."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedaf.data.spec import AUGMENT
from fedaf.reproduce.cells import Cell, Line, Section, Table

_HELD_OUT_SEED = 100  # and above
_HELD_OUT_ROUNDS = 7  # enough to see the effect of a setting


def settings() -> Table:
    """Return the table of settings. Its seeds and its test images are used by no other table."""
    five = tuple(name for name in AUGMENT if name not in ("rotate", "saturation"))
    as_it_is = "the setting of all other tables"
    to_the_end = [
        _held_out("cifar10", "chosen", as_it_is, rounds=20),
        _held_out("cifar10", "clip1", "image gradients clipped at 1", {"image_clip": 1.0}, rounds=20),
        _held_out("cifar10", "fresh", "new starting images each round", {"continue_images": False}, rounds=20),
    ]
    cifar10 = [
        *to_the_end,
        _held_out("cifar10", "clip2", "image gradients clipped at 2", {"image_clip": 2.0}),
        _held_out("cifar10", "augment0", "no augmentation", augment=()),
        _held_out("cifar10", "augment5", "augmentation without rotation and saturation", augment=five),
        _held_out("cifar10", "augment8", "augmentation with cutout too", augment=(*AUGMENT, "cutout")),
        _held_out("cifar10", "mean5", "images start from means of 5", {"init_mean_of": 5}),
        _held_out("cifar10", "mean20", "images start from means of 20", {"init_mean_of": 20}),
        _held_out("cifar10", "momentum", "momentum 0.5 for the images", {"image_momentum": 0.5}),
        _held_out("cifar10", "sum", "LGKM as a sum over classes", {"lgkm_reduction": "sum"}),
        _held_out("cifar10", "batch", "BatchNorm with batch statistics", {"bn_mode": "batch"}),
    ]
    cifar100 = [
        _held_out("cifar100", "chosen", as_it_is),
        _held_out("cifar100", "mean10", "images start from means of 10", {"init_mean_of": 10}),
        _held_out("cifar100", "fresh", "new starting images each round", {"continue_images": False}),
        _held_out(
            *("cifar100", "fresh-mean10", "new starting images each round, from means of 10"),
            {"continue_images": False, "init_mean_of": 10},
        ),
    ]
    fashionmnist = [
        _held_out("fashionmnist", "chosen", as_it_is),
        _held_out("fashionmnist", "fresh", "new starting images each round", {"continue_images": False}),
        _held_out("fashionmnist", "flip", "flips only", augment=("flip",), rounds=12),
        _held_out("fashionmnist", "augment7", "augmentation of CIFAR-10", augment=tuple(AUGMENT)),
        _held_out("fashionmnist", "mean5", "images start from means of 5", {"init_mean_of": 5}),
        _held_out("fashionmnist", "mean20", "images start from means of 20", {"init_mean_of": 20}),
        _held_out("fashionmnist", "mean50", "images start from means of 50", {"init_mean_of": 50}),
        _held_out("fashionmnist", "temperature1", "temperature 1", {"temperature": 1.0}),
        _held_out("fashionmnist", "students-all", "LGKM over all condensed images", {"lgkm_students": "all"}),
        _held_out("fashionmnist", "without-lgkm", "without LGKM", {"lgkm": False}),
    ]
    small = [
        _small("fedaf", "gamma0.9", "FedAF, default", {}),
        _small("fedaf", "augment0", "FedAF, no augmentation", {}, augment=()),
        _small("fedaf", "mean5", "FedAF, images start from means of 5", {"init_mean_of": 5}),
        _small("fedaf", "mean20", "FedAF, images start from means of 20", {"init_mean_of": 20}),
        _small("fedaf", "fresh", "FedAF, new starting images each round", {"continue_images": False}),
        _small("fedaf", "batch", "FedAF, BatchNorm with batch statistics", {"bn_mode": "batch"}),
        _small("fedaf", "momentum", "FedAF, momentum 0.5 for the images", {"image_momentum": 0.5}),
        _small("fedaf", "clip1", "FedAF, image gradients clipped at 1", {"image_clip": 1.0}),
        _small("fedaf", "sum", "FedAF, LGKM as a sum over classes", {"lgkm_reduction": "sum"}),
        _small("fedaf", "gamma0.7", "FedAF, gamma 0.7", {"gamma": 0.7}),
        _small("fedaf", "gamma0.5", "FedAF, gamma 0.5", {"gamma": 0.5}),
        _small("feddm", "rho1.6", "FedDM, distance 1.6", {"rho": 1.6}),
        _small("feddm", "rho5", "FedDM, default (distance 5)", {}),
        _small("feddm", "rho10", "FedDM, distance 10", {"rho": 10.0}),
    ]
    rounds, of = _HELD_OUT_ROUNDS, "alpha 0.02"
    sections = (
        Section("settings-cifar10", f"CIFAR-10, {of}, {rounds} rounds", tuple(cifar10), within=rounds),
        Section("settings-cifar10-20", f"CIFAR-10, {of}, 20 rounds", tuple(to_the_end)),
        Section("settings-cifar100", f"CIFAR-100, {of}, {rounds} rounds", tuple(cifar100), within=rounds),
        Section("settings-fashionmnist", f"FashionMNIST, {of}, {rounds} rounds", tuple(fashionmnist), within=rounds),
        Section("settings-small", f"CIFAR-10, {of}, small, 5 rounds", tuple(small)),
    )
    note = (
        "Choices that the paper leaves open, one at a time: accuracy of FedAF on 5,000 held-out training images, with "
        f"seeds of {_HELD_OUT_SEED} and above, which no other table uses. Upload and copy audit are those of the whole "
        "run, which may be longer. Differences below one or two points may be noise. The runs of the last section are "
        "small enough for a CPU (32 channels, IPC 10, 80 steps with 64 real images per class, 150 server epochs with a "
        "learning rate of 0.01 and a batch size of 64). Its last rows vary the distance between the global model and "
        "the networks that are used for condensation."
    )
    return Table("settings", "Settings", note, sections)


def _held_out(
    dataset: str,
    name: str,
    label: str,
    options: Mapping[str, Any] | None = None,
    augment: tuple[str, ...] | None = None,
    rounds: int = _HELD_OUT_ROUNDS,
    *,
    method: str = "fedaf",
    seeds: Sequence[int] = (_HELD_OUT_SEED,),
    more: tuple[tuple[str, Any], ...] = (),
) -> Line:
    more = (("data.validation", 5000), *more)
    if augment is not None:
        more += (("training.augment", augment),)
    variant, choices = f"{method}-held-out-{name}", tuple((options or {}).items())
    cells = [Cell(dataset, 0.02, variant, seed, choices, rounds=rounds, more=more) for seed in seeds]
    return Line(label, tuple(cells))


def _small(
    method: str, name: str, label: str, options: Mapping[str, Any], augment: tuple[str, ...] | None = None
) -> Line:
    """A line of small runs, minutes each on a CPU."""
    condensing = {"ipc": 10, "local_steps": 80, "real_batch": 64}
    server = {"server_epochs": 150, "server_lr": 0.01, "server_batch": 64}
    choices = {**condensing, **server, **options}
    seeds, more = (_HELD_OUT_SEED, _HELD_OUT_SEED + 1), (("model.width", 32),)
    return _held_out(
        *("cifar10", f"small-{name}", label, choices, augment), rounds=5, method=method, seeds=seeds, more=more
    )
