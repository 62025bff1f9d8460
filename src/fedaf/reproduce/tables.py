"""The paper's tables: the runs they need and the numbers the paper reports."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from fedaf.reproduce.cells import Cell, Line, Section, Table, shown
from fedaf.reproduce.settings import settings

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
TARGET = 60.0  # per cent; the paper's statement on convergence


@cache
def paper() -> dict[str, Any]:
    """Return the paper's numbers by table."""
    found: dict[str, Any] = json.loads(files("fedaf.reproduce").joinpath("paper.json").read_text())
    return {name: table["values"] for name, table in found.items()}


def tables(seeds: Sequence[int] = SEEDS) -> dict[str, Table]:
    """Return all tables by name, in the order of the report. The table ``settings`` has its own seeds."""
    made = [*(make(tuple(seeds)) for make in _TABLES), settings()]
    return {table.name: table for table in made}


def _line(variant: str, cells: Iterable[Cell], values: Any = None, label: str | None = None) -> Line:
    known = None if values is None else tuple(values) if isinstance(values, list) else (values, None)
    return Line(label or shown(variant), tuple(cells), known)


def _standard(dataset: str, alpha: float | None, seeds: Sequence[int], **more: Any) -> Iterator[tuple[str, list[Cell]]]:
    """Yield the eight methods and the controls, with their cells."""
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
        "Ten clients, ConvNet, 20 rounds, IPC 50; the best round on the test split. The controls upload as many bytes "
        "as FedAF without condensing: they show what such an upload is worth by itself.",
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
        "One client per domain, 64 x 64 images, ConvNet, 10 rounds, IPC 20; accuracy by domain in the round with the "
        "best average. PACS replaces DomainNet where its images are not available. Its images are different, so there "
        "is no number of the paper to compare with.",
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

    note = "CIFAR-10, 20 rounds: FedAF without one of its two parts, and FedDM, which has neither part."
    return Table("core-designs", "Core designs", note, tuple(section(alpha) for alpha in ALPHAS))


def _gamma(seeds: tuple[int, ...]) -> Table:
    def cells(gamma: float) -> list[Cell]:
        if gamma == 0.9:  # the first rounds of the run that is in other tables
            return [Cell("cifar10", 0.1, "fedaf", seed) for seed in seeds]
        options = (("gamma", gamma),)
        return [Cell("cifar10", 0.1, f"fedaf-gamma{gamma:g}", seed, options, rounds=10) for seed in seeds]

    lines = [_line("fedaf", cells(float(g)), value, f"gamma {g}") for g, value in paper()["gamma"].items()]
    note = "FedAF on CIFAR-10, the best of the first ten rounds; the paper gives one number for each gamma."
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

    note = "ResNet18 on CIFAR-10, 20 rounds; all other settings are those of the ConvNet."
    return Table("resnet18", "ResNet18", note, tuple(section(alpha) for alpha in ALPHAS))


def _communication(seeds: tuple[int, ...]) -> Table:
    """Uploads are counted without training, in one short round; FedAF's do not depend on the model, so it is small."""
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
        "Upload per client and round in MiB, IPC 50, counted from the messages of one round. FedAF's upload does not "
        "depend on the model or the number of steps; FedAvg's is the model, here for images of 32 x 32."
    )
    return Table("communication", "Communication", note, (Section("communication", "", tuple(lines)),), "upload")


def _convergence(seeds: tuple[int, ...]) -> Table:
    lines = [
        _line(method, [Cell("cifar10", 0.02, method, seed) for seed in seeds], rounds)
        for method, rounds in paper()["convergence"].items()
    ]
    note = f"CIFAR-10, alpha 0.02: rounds until the accuracy, averaged over seeds, reaches {TARGET:g} %."
    return Table("convergence", "Convergence", note, (Section("convergence", "", tuple(lines)),), "rounds")


_TABLES: tuple[Callable[[tuple[int, ...]], Table], ...] = (
    *(_label_skew, _feature_skew, _ipc, _core_designs, _gamma, _resnet18, _communication, _convergence),
)
