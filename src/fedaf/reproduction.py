"""What the paper's tables are made of: every run they need, and the number the paper prints.

A cell is one run. The same cell may stand in several tables, and is run once."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fedaf.presets import AUGMENT

METHODS = ("fedavg", "fedprox", "fedbn", "moon", "feddyn", "fedgen", "feddm", "fedaf")
CORE = ("fedaf", "feddm", "fedavg")
CONTROLS: dict[str, dict[str, Any]] = {
    "fedaf-zero-steps": {"local_steps": 0},
    "fedaf-random-images": {"init": "real", "allow_real_init": True, "local_steps": 0},
}
LABEL_SKEW = ("cifar10", "cifar100", "fashionmnist")
FEATURE_SKEW = ("domainnet", "pacs")
ALPHAS = (0.02, 0.05, 0.1)
SEEDS = (0, 1, 2)
TARGET = 60.0  # per cent, of the paper's sentence on convergence

_HELD_OUT_SEED = 100  # and above
_HELD_OUT_ROUNDS = 7  # after which the first choices of a run show

_NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "fashionmnist": "FashionMNIST",
    "domainnet": "DomainNet",
    "pacs": "PACS",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedbn": "FedBN",
    "moon": "MOON",
    "feddyn": "FedDyn",
    "fedgen": "FedGen",
    "feddm": "FedDM",
    "fedaf": "FedAF",
    "convnet": "ConvNet",
    "resnet18": "ResNet18",
    "fedaf-zero-steps": "control: mean images, no condensation",
    "fedaf-random-images": "control: random private images, as they are",
    "fedaf-without-cdc": "FedAF without CDC",
    "fedaf-without-lgkm": "FedAF without LGKM",
}


def shown(name: str) -> str:
    """A name as people write it."""
    return _NAMES.get(name, name)


@dataclass(frozen=True)
class Cell:
    """One run: what differs from the paper's preset for its data set and method. ``alpha`` is ``None`` for a split by
    domain; ``variant`` is the method with a word for its ``options`` (of the table ``method``)."""

    dataset: str
    alpha: float | None
    variant: str
    seed: int = 0
    options: tuple[tuple[str, Any], ...] = ()
    model: str = "convnet"
    rounds: int | None = None
    more: tuple[tuple[str, Any], ...] = ()  # other settings, by their full names

    @property
    def method(self) -> str:
        return self.variant.partition("-")[0]

    @property
    def setting(self) -> str:
        """The data and their split."""
        return self.dataset if self.alpha is None else f"{self.dataset}-alpha{self.alpha:g}"

    @property
    def kind(self) -> str:
        """All but the seed."""
        return f"{self.setting}/{self.variant}" + (f"-{self.model}" if self.model != "convnet" else "")

    @property
    def directory(self) -> str:
        """Where its run lies, below the folder of all runs."""
        return f"{self.kind}-seed{self.seed}"

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """Its configuration, as tables over the preset ``paper``."""
        tables: dict[str, dict[str, Any]] = {
            "run": {"seed": self.seed, **({} if self.rounds is None else {"rounds": self.rounds})},
            "data": {"name": self.dataset},
            "partition": {"kind": "domain"} if self.alpha is None else {"kind": "dirichlet", "alpha": self.alpha},
            "model": {"name": self.model},
            "method": {"name": self.method, **dict(self.options)},
        }
        for path, value in self.more:
            table, _, key = path.partition(".")
            tables.setdefault(table, {})[key] = list(value) if isinstance(value, tuple) else value
        return tables


@dataclass(frozen=True)
class Line:
    """A row of a table: a cell for each seed, and what the paper prints, as mean and standard deviation."""

    label: str
    cells: tuple[Cell, ...]
    paper: tuple[float, float | None] | None = None
    paper_by_domain: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Section:
    """Rows that belong together. ``name`` names its pictures; ``within`` counts only that many rounds."""

    name: str
    title: str
    lines: tuple[Line, ...]
    within: int | None = None


@dataclass(frozen=True)
class Table:
    """``measure`` says what a figure is: accuracy, accuracy by domain, MiB of an upload, or rounds to a target."""

    name: str
    title: str
    note: str
    sections: tuple[Section, ...]
    measure: str = "accuracy"

    @property
    def lines(self) -> list[tuple[Section, Line]]:
        return [(section, line) for section in self.sections for line in section.lines]

    @property
    def cells(self) -> list[Cell]:
        """Each once."""
        return list(dict.fromkeys(cell for _, line in self.lines for cell in line.cells))


@cache
def paper() -> dict[str, Any]:
    """The paper's numbers by table."""
    found: dict[str, Any] = json.loads(files("fedaf").joinpath("paper.json").read_text())
    return {name: table["values"] for name, table in found.items()}


def tables(seeds: Sequence[int] = SEEDS) -> dict[str, Table]:
    """All tables by name, in the order of the report."""
    made = [make(tuple(seeds)) for make in _TABLES]
    return {table.name: table for table in made}


def _line(variant: str, cells: Iterable[Cell], values: Any = None, label: str | None = None) -> Line:
    known = None if values is None else tuple(values) if isinstance(values, list) else (values, None)
    return Line(label or shown(variant), tuple(cells), known)


def _standard(dataset: str, alpha: float | None, seeds: Sequence[int], **more: Any) -> Iterator[tuple[str, list[Cell]]]:
    """The eight methods and the controls."""
    for method in METHODS:
        yield method, [Cell(dataset, alpha, method, seed, **more) for seed in seeds]
    for name, options in CONTROLS.items():
        yield name, [Cell(dataset, alpha, name, seed, tuple(options.items()), **more) for seed in seeds]


def _label_skew(seeds: tuple[int, ...]) -> Table:
    printed = paper()["label-skew"]

    def section(dataset: str, alpha: float) -> Section:
        lines = [
            _line(name, cells, printed[name][f"{alpha:g}"][dataset] if name in printed else None)
            for name, cells in _standard(dataset, alpha, seeds)
        ]
        return Section(f"{dataset}-alpha{alpha:g}", f"{shown(dataset)}, alpha {alpha:g}", tuple(lines))

    return Table(
        "label-skew",
        "Label skew (Table 1)",
        "Ten clients, ConvNet, 20 rounds, IPC 50; the best round on the test split. The controls are FedAF's exchange "
        "at the same bytes without condensation: what such an upload is worth by itself.",
        tuple(section(dataset, alpha) for dataset in LABEL_SKEW for alpha in ALPHAS),
    )


def _feature_skew(seeds: tuple[int, ...]) -> Table:
    printed = paper()["feature-skew"]

    def line(dataset: str, name: str, cells: list[Cell]) -> Line:
        by_domain = printed.get(name) if dataset == "domainnet" else None
        return Line(shown(name), tuple(cells), paper_by_domain=by_domain)

    return Table(
        "feature-skew",
        "Feature skew (Table 2)",
        "A client for each domain, 64 x 64, ConvNet, 10 rounds, IPC 20; accuracy by domain in the round with the best "
        "average. PACS stands in for DomainNet where its images are not to be had: other pictures, so no number of the "
        "paper stands beside it.",
        tuple(
            Section(dataset, shown(dataset), tuple(line(dataset, *each) for each in _standard(dataset, None, seeds)))
            for dataset in FEATURE_SKEW
        ),
        "domains",
    )


def _ipc(seeds: tuple[int, ...]) -> Table:
    printed = paper()["ipc"]

    def cells(ipc: int, alpha: float) -> list[Cell]:
        variant, options = ("fedaf", ()) if ipc == 50 else (f"fedaf-ipc{ipc}", (("ipc", ipc),))
        return [Cell("cifar10", alpha, variant, seed, options) for seed in seeds]

    def section(alpha: float) -> Section:
        lines = [_line("fedaf", cells(int(n), alpha), printed[n][f"{alpha:g}"], f"IPC {n}") for n in printed]
        return Section(f"ipc-alpha{alpha:g}", f"CIFAR-10, alpha {alpha:g}", tuple(lines))

    return Table("ipc", "Images per class", "FedAF on CIFAR-10, 20 rounds.", tuple(section(alpha) for alpha in ALPHAS))


def _core_designs(seeds: tuple[int, ...]) -> Table:
    printed = paper()["core-designs"]
    parts: dict[str, tuple[str, tuple[tuple[str, Any], ...]]] = {
        "fedaf": ("fedaf", ()),
        "without-cdc": ("fedaf-without-cdc", (("cdc", False),)),
        "without-lgkm": ("fedaf-without-lgkm", (("lgkm", False),)),
        "feddm": ("feddm", ()),
    }

    def section(alpha: float) -> Section:
        lines = [
            _line(name, [Cell("cifar10", alpha, name, seed, options) for seed in seeds], printed[key][f"{alpha:g}"])
            for key, (name, options) in parts.items()
        ]
        return Section(f"core-designs-alpha{alpha:g}", f"CIFAR-10, alpha {alpha:g}", tuple(lines))

    note = "CIFAR-10, 20 rounds: FedAF without one of its two parts, and FedDM, which has neither."
    return Table("core-designs", "Core designs", note, tuple(section(alpha) for alpha in ALPHAS))


def _gamma(seeds: tuple[int, ...]) -> Table:
    def cells(gamma: float) -> list[Cell]:
        if gamma == 0.9:  # the first rounds of the run that other tables have
            return [Cell("cifar10", 0.1, "fedaf", seed) for seed in seeds]
        options = (("gamma", gamma),)
        return [Cell("cifar10", 0.1, f"fedaf-gamma{gamma:g}", seed, options, rounds=10) for seed in seeds]

    lines = [_line("fedaf", cells(float(g)), value, f"gamma {g}") for g, value in paper()["gamma"].items()]
    note = "FedAF on CIFAR-10, the best of the first ten rounds; the paper gives one number each."
    section = Section("gamma", "CIFAR-10, alpha 0.1", tuple(lines), within=10)
    return Table("gamma", "Re-sampling", note, (section,))


def _resnet18(seeds: tuple[int, ...]) -> Table:
    printed = paper()["resnet18"]

    def section(alpha: float) -> Section:
        lines = [
            _line(name, [Cell("cifar10", alpha, name, seed, model="resnet18") for seed in seeds], by[f"{alpha:g}"])
            for name, by in printed.items()
        ]
        return Section(f"resnet18-alpha{alpha:g}", f"CIFAR-10, alpha {alpha:g}", tuple(lines))

    note = "ResNet18 on CIFAR-10, 20 rounds, everything else as for the ConvNet."
    return Table("resnet18", "ResNet18", note, tuple(section(alpha) for alpha in ALPHAS))


def _communication(seeds: tuple[int, ...]) -> Table:
    """Bytes need no training: a round without condensation; FedAF's do not depend on the model, so that is small."""
    printed = paper()["communication"]
    of_fedaf = (("local_steps", 0), ("server_epochs", 1))
    plain: tuple[str, Any] = ("training.augment", ())
    small = (("model.width", 8), plain)
    few = (("federation.participation", 0.1), plain)

    def fedavg(model: str) -> Line:
        name, options = "fedavg-upload", (("local_epochs", 1),)
        cells = [Cell("cifar10", 0.1, name, seeds[0], options, model, 1, few)] if seeds else []
        return _line(name, cells, printed["fedavg"][model], f"FedAvg, {shown(model)}")

    def fedaf(dataset: str, alpha: float) -> Line:
        cells = [Cell(dataset, alpha, "fedaf-upload", seed, of_fedaf, rounds=1, more=small) for seed in seeds]
        value = printed["fedaf"][dataset][f"{alpha:g}"]
        return _line("fedaf-upload", cells, value, f"FedAF, {shown(dataset)}, alpha {alpha:g}")

    lines = [*map(fedavg, printed["fedavg"]), *(fedaf(dataset, alpha) for dataset in LABEL_SKEW for alpha in ALPHAS)]
    note = (
        "MiB that a client uploads in a round, IPC 50, counted from the messages of one round. FedAF's upload is the "
        "same for every model and however long it condenses; FedAvg's is the model, here for images of 32 x 32."
    )
    return Table("communication", "Communication", note, (Section("communication", "", tuple(lines)),), "upload")


def _convergence(seeds: tuple[int, ...]) -> Table:
    lines = [
        _line(method, [Cell("cifar10", 0.02, method, seed) for seed in seeds], rounds)
        for method, rounds in paper()["convergence"].items()
    ]
    note = f"CIFAR-10, alpha 0.02: rounds until the accuracy, as the mean over the seeds, reaches {TARGET:g} %."
    return Table("convergence", "Convergence", note, (Section("convergence", "", tuple(lines)),), "rounds")


def _settings(seeds: tuple[int, ...]) -> Table:
    """Choices that the paper leaves open, with a seed and on images that no other table has, whatever ``seeds`` are."""
    five = tuple(name for name in AUGMENT if name not in ("rotate", "saturation"))
    as_it_is = "as in every other table"
    to_the_end = [
        _held_out("cifar10", "chosen", as_it_is, rounds=20),
        _held_out("cifar10", "clip1", "gradients of the images clipped at 1", {"image_clip": 1.0}, rounds=20),
        _held_out("cifar10", "fresh", "images start anew in each round", {"continue_images": False}, rounds=20),
    ]
    cifar10 = [
        *to_the_end,
        _held_out("cifar10", "clip2", "gradients of the images clipped at 2", {"image_clip": 2.0}),
        _held_out("cifar10", "augment0", "no augmentation", augment=()),
        _held_out("cifar10", "augment5", "augmentation without rotation and saturation", augment=five),
        _held_out("cifar10", "augment8", "augmentation with cutout too", augment=(*AUGMENT, "cutout")),
        _held_out("cifar10", "mean5", "images start from means of 5", {"init_mean_of": 5}),
        _held_out("cifar10", "mean20", "images start from means of 20", {"init_mean_of": 20}),
        _held_out("cifar10", "momentum", "momentum 0.5 for the images", {"image_momentum": 0.5}),
        _held_out("cifar10", "sum", "LGKM as a sum over classes", {"lgkm_reduction": "sum"}),
        _held_out("cifar10", "batch", "BatchNorm with statistics of the batch", {"bn_mode": "batch"}),
    ]
    cifar100 = [
        _held_out("cifar100", "chosen", as_it_is),
        _held_out("cifar100", "mean10", "images start from means of 10", {"init_mean_of": 10}),
        _held_out("cifar100", "fresh", "images start anew in each round", {"continue_images": False}),
        _held_out(
            *("cifar100", "fresh-mean10", "images start anew in each round, from means of 10"),
            {"continue_images": False, "init_mean_of": 10},
        ),
    ]
    fashionmnist = [
        _held_out("fashionmnist", "chosen", as_it_is),
        _held_out("fashionmnist", "fresh", "images start anew in each round", {"continue_images": False}),
        _held_out("fashionmnist", "flip", "images flipped", augment=("flip",), rounds=12),
        _held_out("fashionmnist", "augment7", "augmentation of CIFAR-10", augment=tuple(AUGMENT)),
        _held_out("fashionmnist", "mean5", "images start from means of 5", {"init_mean_of": 5}),
        _held_out("fashionmnist", "mean20", "images start from means of 20", {"init_mean_of": 20}),
        _held_out("fashionmnist", "mean50", "images start from means of 50", {"init_mean_of": 50}),
        _held_out("fashionmnist", "temperature1", "temperature 1", {"temperature": 1.0}),
        _held_out("fashionmnist", "students-all", "LGKM over all condensed images", {"lgkm_students": "all"}),
        _held_out("fashionmnist", "without-lgkm", "without LGKM", {"lgkm": False}),
    ]
    small = [
        _small("fedaf", "gamma0.9", "FedAF as elsewhere", {}),
        _small("fedaf", "augment0", "FedAF, no augmentation", {}, augment=()),
        _small("fedaf", "mean5", "FedAF, images start from means of 5", {"init_mean_of": 5}),
        _small("fedaf", "mean20", "FedAF, images start from means of 20", {"init_mean_of": 20}),
        _small("fedaf", "fresh", "FedAF, images start anew in each round", {"continue_images": False}),
        _small("fedaf", "batch", "FedAF, BatchNorm with statistics of the batch", {"bn_mode": "batch"}),
        _small("fedaf", "momentum", "FedAF, momentum 0.5 for the images", {"image_momentum": 0.5}),
        _small("fedaf", "clip1", "FedAF, gradients of the images clipped at 1", {"image_clip": 1.0}),
        _small("fedaf", "sum", "FedAF, LGKM as a sum over classes", {"lgkm_reduction": "sum"}),
        _small("fedaf", "gamma0.7", "FedAF, gamma 0.7", {"gamma": 0.7}),
        _small("fedaf", "gamma0.5", "FedAF, gamma 0.5", {"gamma": 0.5}),
        _small("feddm", "rho1.6", "FedDM, distance 1.6", {"rho": 1.6}),
        _small("feddm", "rho5", "FedDM as elsewhere, distance 5", {}),
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
        "What the paper leaves open, one choice at a time: accuracy of FedAF on 5,000 training images that nobody "
        f"trained on, with seeds from {_HELD_OUT_SEED} on, which no other table has. Upload and copy audit are of the "
        "whole run, which may be longer. Differences below a point or two may be chance. The last part is small enough "
        "for a CPU (32 channels, IPC 10, 80 steps with 64 real images a class, 150 epochs of the server with a "
        "learning rate of 0.01 and batches of 64); its last rows are about how far the networks that images are "
        "condensed under are from the global model."
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
    variant, settings = f"{method}-held-out-{name}", tuple((options or {}).items())
    cells = [Cell(dataset, 0.02, variant, seed, settings, rounds=rounds, more=more) for seed in seeds]
    return _line(method, cells, label=label)


def _small(
    method: str, name: str, label: str, options: Mapping[str, Any], augment: tuple[str, ...] | None = None
) -> Line:
    """Minutes on a CPU."""
    condensing = {"ipc": 10, "local_steps": 80, "real_batch": 64}
    server = {"server_epochs": 150, "server_lr": 0.01, "server_batch": 64}
    settings = {**condensing, **server, **options}
    seeds, more = (_HELD_OUT_SEED, _HELD_OUT_SEED + 1), (("model.width", 32),)
    return _held_out(
        *("cifar10", f"small-{name}", label, settings, augment), rounds=5, method=method, seeds=seeds, more=more
    )


_TABLES: tuple[Callable[[tuple[int, ...]], Table], ...] = (
    *(_label_skew, _feature_skew, _ipc, _core_designs, _gamma, _resnet18, _communication, _convergence, _settings),
)
