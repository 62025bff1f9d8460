"""The paper's tables: the runs they need and the numbers the paper reports. Their texts are in ``tables.toml``."""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.resources import files
from typing import Any

from fedaf.reproduce.cells import Cell, Line, Section, Table, shown

METHODS = ("fedavg", "fedprox", "fedbn", "moon", "feddyn", "fedgen", "feddm", "fedaf", "fedaf-plus")
CORE = ("fedaf-plus", "fedaf", "feddm", "fedavg")
CONTROLS = ("fedaf-zero-steps", "fedaf-random-images")
LABEL_SKEW = ("cifar10", "cifar100", "fashionmnist")
FEATURE_SKEW = ("domainnet", "pacs")
ALPHAS = (0.02, 0.05, 0.1)
SEEDS = (0, 1, 2)
TARGET = 60.0  # per cent; the paper's statement on convergence

_OPTIONS: dict[str, dict[str, Any]] = {
    "fedaf-zero-steps": {"local_steps": 0},
    "fedaf-random-images": {"init": "real", "allow_real_init": True, "local_steps": 0},
    "fedaf-without-cdc": {"cdc": False},
    "fedaf-without-lgkm": {"lgkm": False},
    "fedaf-upload": {"local_steps": 0, "server_epochs": 1},
    "fedavg-upload": {"local_epochs": 1},
    **{f"{method}-ipc{ipc}": {"ipc": ipc} for method in ("fedaf", "fedaf-plus") for ipc in (10, 20, 80, 100)},
    **{f"fedaf-gamma{gamma:g}": {"gamma": gamma} for gamma in (0.2, 0.5, 0.8, 1.0)},
}

_Names = tuple[str, ...]
_Seeds = tuple[int, ...]


@cache
def paper() -> dict[str, Any]:
    """Return the paper's numbers by table."""
    found: dict[str, Any] = json.loads(files("fedaf.reproduce").joinpath("paper.json").read_text())
    return {name: table["values"] for name, table in found.items()}


@cache
def _described() -> dict[str, Any]:
    return tomllib.loads(files("fedaf.reproduce").joinpath("tables.toml").read_text())


def tables(seeds: Sequence[int] = SEEDS) -> dict[str, Table]:
    """Return all tables by name, in the order of the report. The tables ``settings`` and ``plus`` have their own
    seeds."""
    return {
        name: Table(name, facts["title"], facts["note"], tuple(_SECTIONS[name](tuple(seeds))), facts["measure"])
        for name, facts in _described().items()
    }


def _line(label: str, value: Any, seeds: _Seeds, dataset: str, alpha: float | None, variant: str, **more: Any) -> Line:
    """A line with a cell per seed. ``value`` is the paper's: a mean, a list of mean and deviation, or ``None``."""
    options = tuple(_OPTIONS.get(variant, {}).items())
    cells = tuple(Cell(dataset, alpha, variant, seed, **{"options": options, **more}) for seed in seeds)
    return Line(label, cells, tuple(value) if isinstance(value, list) else None if value is None else (value, None))


def _by_alpha(
    name: str, dataset: str, rows: Sequence[tuple[str, str, Mapping[str, Any]]], seeds: _Seeds, **more: Any
) -> list[Section]:
    """A section for each alpha. The rows have a label, a variant, and the paper's values by alpha."""

    def section(alpha: float) -> Section:
        lines = [
            _line(label, values.get(f"{alpha:g}"), seeds, dataset, alpha, variant, **more)
            for label, variant, values in rows
        ]
        return Section(f"{name}-alpha{alpha:g}", f"{shown(dataset)}, alpha {alpha:g}", tuple(lines))

    return [section(alpha) for alpha in ALPHAS]


def _label_skew(seeds: _Seeds) -> list[Section]:
    def sections(dataset: str) -> list[Section]:
        printed = {
            name: {alpha: values[dataset] for alpha, values in by_alpha.items()}
            for name, by_alpha in paper()["label-skew"].items()
        }
        rows = [(shown(name), name, printed.get(name, {})) for name in (*METHODS, *CONTROLS)]
        return _by_alpha(dataset, dataset, rows, seeds)

    return [section for dataset in LABEL_SKEW for section in sections(dataset)]


def _feature_skew(seeds: _Seeds) -> list[Section]:
    def section(dataset: str) -> Section:
        printed = paper()["feature-skew"] if dataset == "domainnet" else {}
        lines = [
            replace(_line(shown(name), None, seeds, dataset, None, name), paper_by_domain=printed.get(name))
            for name in (*METHODS, *CONTROLS)
        ]
        return Section(dataset, shown(dataset), tuple(lines))

    return [section(dataset) for dataset in FEATURE_SKEW]


def _ipc(seeds: _Seeds) -> list[Section]:
    printed = paper()["ipc"]
    numbers: dict[str, Mapping[str, Any]] = {"fedaf": printed, "fedaf-plus": {}}
    rows = [
        (f"{shown(method)}, IPC {ipc}", method if ipc == "50" else f"{method}-ipc{ipc}", of_paper.get(ipc, {}))
        for method, of_paper in numbers.items()
        for ipc in printed
    ]
    return _by_alpha("ipc", "cifar10", rows, seeds)


def _variants(name: str, added: _Names, seeds: _Seeds, **more: Any) -> list[Section]:
    """The paper's variants, and those of ``added``, for which it has no numbers."""
    printed = paper()[name]
    rows = [(shown(variant), variant, printed.get(variant, {})) for variant in (*printed, *added)]
    return _by_alpha(name, "cifar10", rows, seeds, **more)


def _gamma(seeds: _Seeds) -> list[Section]:
    def line(gamma: str, value: float) -> Line:
        where = (seeds, "cifar10", 0.1)
        if gamma == "0.9":  # the first rounds of the run that is in other tables
            return _line(f"gamma {gamma}", value, *where, "fedaf")
        return _line(f"gamma {gamma}", value, *where, f"fedaf-gamma{float(gamma):g}", rounds=10)

    return [Section("gamma", "CIFAR-10, alpha 0.1", tuple(line(*each) for each in paper()["gamma"].items()), within=10)]


def _communication(seeds: _Seeds) -> list[Section]:
    """Uploads are counted without training, in one short round; FedAF's do not depend on the model, so it is small."""
    printed, plain = paper()["communication"], ("training.augment", ())
    small = {"rounds": 1, "more": (("model.width", 8), plain)}
    few = {"rounds": 1, "more": (("federation.participation", 0.1), plain)}
    fedavg = [
        _line(f"FedAvg, {shown(model)}", value, seeds[:1], "cifar10", 0.1, "fedavg-upload", model=model, **few)
        for model, value in printed["fedavg"].items()
    ]
    fedaf = [
        _line(f"FedAF, {shown(name)}, alpha {alpha}", value, seeds, name, float(alpha), "fedaf-upload", **small)
        for name in LABEL_SKEW
        for alpha, value in printed["fedaf"][name].items()
    ]
    return [Section("communication", "", (*fedavg, *fedaf))]


def _convergence(seeds: _Seeds) -> list[Section]:
    printed = {**paper()["convergence"], "fedaf-plus": None}
    lines = [_line(shown(method), printed[method], seeds, "cifar10", 0.02, method) for method in printed]
    return [Section("convergence", "", tuple(lines))]


def _listed(table: str, _: _Seeds) -> list[Section]:
    """The sections of a table whose rows are in ``tables.toml``.

    Their runs are tested on held-out images, with seeds that no other table uses, except in a section with
    ``held_out = false``. ``paper`` of a row names the method whose number in the paper's Table 1 stands beside it.
    """

    def line(section: Mapping[str, Any], row: Mapping[str, Any]) -> Line:
        options = {**section.get("options", {}), **row.get("options", {})}
        more = {**({"data.validation": 5000} if section.get("held_out", True) else {}), **section.get("more", {})}
        if "augment" in row:
            more["training.augment"] = tuple(row["augment"])
        dataset, seeds, rounds = section["dataset"], tuple(section["seeds"]), row.get("rounds", section.get("rounds"))
        printed = paper()["label-skew"][row["paper"]]["0.02"][dataset] if "paper" in row else None
        where, settings = (dataset, 0.02, row["variant"]), tuple(options.items())
        return _line(row["label"], printed, seeds, *where, options=settings, rounds=rounds, more=tuple(more.items()))

    return [
        Section(each["name"], each["title"], tuple(line(each, row) for row in each["rows"]), each.get("within"))
        for each in _described()[table]["sections"]
    ]


_SECTIONS: dict[str, Callable[[_Seeds], list[Section]]] = {
    "label-skew": _label_skew,
    "feature-skew": _feature_skew,
    "ipc": _ipc,
    "core-designs": partial(_variants, "core-designs", ()),
    "gamma": _gamma,
    "resnet18": partial(_variants, "resnet18", ("fedaf-plus",), model="resnet18"),
    "communication": _communication,
    "convergence": _convergence,
    "plus": partial(_listed, "plus"),
    "settings": partial(_listed, "settings"),
}
