"""Group runs by what differs: first by data and split, then by method and settings, then by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedaf.common.naming import nearest
from fedaf.engine.registry import ENGINES
from fedaf.errors import UserError
from fedaf.reporting.html.palette import Style, styles_of
from fedaf.reporting.html.reading import Run
from fedaf.reporting.tables import Result, counted, seeds_of, setting_of

# Settings that have no effect on the numbers, or that say where files are.
_NO_EFFECT = {
    "data.dir",
    "data.max_unreadable",
    "partition.max_redraws",
    "federation.policy",
    "federation.wait",
    "privacy.ledger",
}
_OF_DATA = ("data.", "partition.", "model.")
_MOST_NAMED = 3  # settings in the label of a variant


@dataclass(frozen=True)
class Variant:
    """The runs of one method with the same settings, one per seed.

    Args:
        label: Its name in the report: the method, and its settings if the method occurs more than once.
        method: Name of the method.
        runs: One run per seed, in the order given.
        style: Its colour and line.
    """

    label: str
    method: str
    runs: Sequence[Run]
    style: Style

    @property
    def first(self) -> Run:
        """The run that is shown where only one can be."""
        return self.runs[0]

    @property
    def results(self) -> list[Result]:
        """The content of ``result.json`` of each run, under the label."""
        return [{**run.result, "method": self.label} for run in self.runs]


@dataclass(frozen=True)
class Group:
    """Runs on the same data and split, which can be compared.

    Args:
        title: Data and split, for people.
        variants: What is compared.
        against: The label of the variant that the others are compared with.
        repeated: Directories of runs that another run has the settings and the seed of; they are not shown.
    """

    title: str
    variants: Sequence[Variant]
    against: str
    repeated: Sequence[str] = ()

    @property
    def results(self) -> list[Result]:
        """The results of all runs, under the labels of their variants."""
        return [result for variant in self.variants for result in variant.results]

    @property
    def counted(self) -> str:
        """How many methods there are and, if it is more, how many variants of them."""
        methods = len({variant.method for variant in self.variants})
        variants = "" if methods == len(self.variants) else f" in {len(self.variants)} variants"
        return counted(methods, "method") + variants

    @property
    def seeds(self) -> list[int]:
        """All seeds, in order."""
        return sorted({result["seed"] for result in self.results})


def grouped(runs: Sequence[Run], against: str | None = None) -> list[Group]:
    """Group runs.

    Args:
        runs: Finished runs.
        against: Method or label to compare the others with; ``None``: the first of each group.

    Raises:
        UserError: No run is of the method ``against``.
    """
    by_data: dict[Any, list[Run]] = {}
    for run in runs:
        by_data.setdefault(_data_of(run), []).append(run)
    parts = [_labelled(members) for members in by_data.values()]
    labels = [(label, members[0].result["method"]) for labelled, _ in parts for label, members in labelled.items()]
    styles = styles_of(dict(labels))
    groups = []
    for labelled, repeated in parts:
        variants = [Variant(name, own[0].result["method"], own, styles[name]) for name, own in labelled.items()]
        base = next((v.label for v in variants if against in (v.label, v.method)), variants[0].label)
        groups.append(Group("", variants, base, repeated))
    known = sorted({name for pair in labels for name in pair})
    if against is not None and against not in known:
        what = f"--against is {against!r}{nearest(against, known)}, and no run is of this method"
        raise UserError(f"{what}; expected one of {', '.join(known)}.", code="FEDAF-REPORT-AGAINST")
    return _titled(groups)


def _data_of(run: Run) -> Any:
    """Return what runs must share to be compared: data, split, test images and model."""
    facts = [str(run.result.get(key)) for key in ("dataset", "partition", "alpha", "clients", "model")]
    settings = [(k, v) for k, v in run.settings.items() if k.startswith(_OF_DATA) and k not in _NO_EFFECT]
    return (*facts, _tested_on(run), *_key(dict(settings)))


def _key(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return settings to compare runs by."""
    known = {path: _switched(value) for path, value in settings.items()}
    return tuple(sorted((path, str(value)) for path, value in known.items() if value is not None))


def _switched(value: Any) -> Any:
    """Return a setting, or ``None`` for a switch that is off: an older run may not know it yet."""
    return None if value is False else value


def _settings_of(run: Run) -> dict[str, Any]:
    """Return what else changes the numbers of a run, other than its seed."""
    found: dict[str, Any] = _conditions(run.result)
    for path, value in run.settings.items():
        if path == "run.rounds" or not path.startswith((*_OF_DATA, "run.")):
            found[path] = value
    return {key: value for key, value in found.items() if key not in _NO_EFFECT}


def _conditions(result: Result) -> dict[str, Any]:
    """Return what computed a run, in the words of today. Methods of the first version did not record it."""
    engine = result.get("engine")
    known = (ENGINES.aliases or {}).get(engine, engine) if isinstance(engine, str) else None
    return {"engine": known, "precision": result.get("precision"), "method_version": result.get("method_version", 1)}


def _labelled(runs: Sequence[Run]) -> tuple[dict[str, list[Run]], list[str]]:
    """Return the runs of each label, and the directories of those that repeat another one."""
    methods: dict[str, dict[Any, list[Run]]] = {}
    repeated = []
    for run in runs:
        same = methods.setdefault(run.result["method"], {})
        members = same.setdefault(_key(_settings_of(run)), [])
        if any(other.result["seed"] == run.result["seed"] for other in members):
            repeated.append(run.path.name)
        else:
            members.append(run)
    labelled: dict[str, list[Run]] = {}
    for method, variants in methods.items():
        for label, members in zip(
            _labels(method, [_settings_of(own[0]) for own in variants.values()]), variants.values(), strict=True
        ):
            labelled[label] = members
    return labelled, repeated


def _labels(method: str, variants: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each variant of a method: what differs between them, or a number if that is too long."""
    keys = {key for settings in variants for key in settings}
    if len(variants) == 1:
        return [method]
    differing = sorted(key for key in keys if len({str(_switched(settings.get(key))) for settings in variants}) > 1)
    shown = [
        ", ".join(f"{key.rpartition('.')[2]} {_shown(settings.get(key))}" for key in differing) for settings in variants
    ]
    if len(differing) > _MOST_NAMED or len(set(shown)) < len(variants):
        return [f"{method} (variant {number})" for number in range(1, len(variants) + 1)]
    return [f"{method} ({text})" for text in shown]


def _shown(value: Any) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _titled(groups: Sequence[Group]) -> list[Group]:
    """Give every group a title: its setting, and whatever else tells it apart from the others."""
    firsts = [group.variants[0].first for group in groups]
    several_models = len({run.result.get("model") for run in firsts}) > 1
    titles = []
    for group, run in zip(groups, firsts, strict=True):
        parts, rounds = setting_of(run.result), {result["rounds"] for result in group.results}
        parts += [f"model {run.result.get('model')}"] if several_models else []
        parts += [] if _tested_on(run) == "test" else [f"tested on {_tested_on(run)}"]
        parts += [counted(rounds.pop(), "round")] if len(rounds) == 1 else []
        titles.append(", ".join([*parts, seeds_of(group.results)]))
    found = []
    for group, run, title in zip(groups, firsts, titles, strict=True):
        alike = [other for other, same in zip(firsts, titles, strict=True) if same == title]
        paths = {path for other in alike for path in other.settings if path.startswith(_OF_DATA)} - _NO_EFFECT
        named = [path for path in sorted(paths) if len({str(other.settings.get(path)) for other in alike}) > 1]
        extra = [f"{path} {_shown(run.settings.get(path))}" for path in named[:_MOST_NAMED]]
        found.append(replace(group, title=", ".join([title, *extra])))
    return found


def _tested_on(run: Run) -> str:
    """Return what a run was tested on; older runs do not record the test split."""
    return str(run.result.get("tested_on") or "test")
