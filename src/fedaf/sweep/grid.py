"""Grid files: fixed settings, and lists of values that are combined. Every combination is a cell, one run.

preset = "quick"                                  # fixed settings, as in the TOML file of a run
data.name = "digits"

[grid]                                            # every combination of these
method.name = ["fedaf", "feddm", "fedavg"]
method.ipc = [10, 50]                             # for the methods that have it
partition.alpha = [0.02, 0.1]
run.seed = [0, 1, 2]

[for.fedavg]                                      # settings of one method
method.lr = 0.05
"""

import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import tomli_w

from fedaf import config as configuration
from fedaf.common.naming import nearest
from fedaf.config import Config
from fedaf.config.tables import TABLES, MethodTable
from fedaf.config.toml import toml_value
from fedaf.errors import UserError
from fedaf.federation.metrics import find_metric
from fedaf.methods.registry import METHODS
from fedaf.sweep.identity import Identity, identity

METHOD, SEED = "method.name", "run.seed"
#: Settings of which client has which samples. Runs that differ in them are not compared.
SPLIT = ("data.", "partition.", SEED)
#: What a grid file has besides the tables of a run.
KEYS = ("grid", "for", "exclude", "against", "metrics")
_MOST_CELLS = 10_000
_LONGEST_VALUE = 40  # of a directory's name

Values = Mapping[str, Any]  # by path


@dataclass(frozen=True)
class GridCell:
    """One run of a grid.

    Args:
        directory: The directory of its run.
        variant: What is compared: the method with those of its options that vary.
        setting: What variants are compared in: the other values that vary, without the seed.
        seed: Its seed.
        settings: What is given of its configuration, as TOML.
        values: The values that vary, by path.
    """

    directory: str
    variant: str
    setting: str
    seed: int
    settings: str
    values: Values = field(compare=False)

    @property
    def config(self) -> Config:
        """Its complete configuration."""
        return _config(self.settings)

    @property
    def identity(self) -> Identity:
        """The settings that change its numbers."""
        return _identity(self.settings)


@lru_cache(maxsize=_MOST_CELLS)
def _config(settings: str) -> Config:
    return configuration.build(tomllib.loads(settings))


@lru_cache(maxsize=_MOST_CELLS)
def _identity(settings: str) -> Identity:
    return identity(_config(settings))


@dataclass(frozen=True)
class Grid:
    """The cells of a grid file.

    Args:
        cells: All cells in the order in which they are run: all methods of a seed before the next seed, so that a
            sweep that was stopped has whole pairs.
        paths: The settings that vary.
        against: The variant that the others are compared with.
        metrics: Metrics to compare besides the accuracies.
    """

    cells: Sequence[GridCell]
    paths: Sequence[str]
    against: str
    metrics: Sequence[str] = ()

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[GridCell]]:
        """The cells of every setting and variant, one per seed: settings in the order of the file, then variants."""
        found: dict[str, dict[str, list[GridCell]]] = {}
        for cell in self.cells:
            found.setdefault(cell.setting, {}).setdefault(cell.variant, []).append(cell)
        return {(setting, variant): cells for setting, row in found.items() for variant, cells in row.items()}


def expand(content: Mapping[str, Any]) -> Grid:
    """Return the cells of a grid file, after checking the configuration of each.

    Args:
        content: The content of the file.

    Raises:
        UserError: Something in it is unknown, contradictory or has a wrong value.
    """
    refuse_unknown(content, KEYS)
    axes = _axes(content.get("grid", {}), "[grid]")
    if not axes:
        raise _wrong("the file has no [grid] with lists of values; add one, such as run.seed = [0, 1, 2]")
    fixed = configuration.merge({name: value for name, value in content.items() if name not in KEYS})
    if both := [path for path in axes if has(fixed, path)]:
        raise _wrong(f"{both[0]} is in [grid] and also a fixed setting; remove one of them")
    methods = axes.pop(METHOD, [fixed.get("method", {}).get("name", MethodTable().name)])
    for name in methods:
        if not isinstance(name, str):
            raise _wrong(f"{METHOD} in [grid] has {name!r}; expected names of methods")
        METHODS.find(name)
    own = _own(content.get("for", {}), methods, axes)
    combined = list(_combinations(methods, axes, fixed, own, METHOD in _flat(content["grid"])))
    if len(combined) == _MOST_CELLS:
        raise _wrong(f"the grid has {_MOST_CELLS:,} runs or more; divide it into several files")
    kept = _without_excluded(combined, content.get("exclude", []), [METHOD, *axes])
    paths = list(dict.fromkeys(path for values, _ in kept for path in values))
    cells = _named(kept, paths)
    _refuse_same(cells)
    return Grid(cells, paths, _against(content.get("against"), cells), _metrics(content.get("metrics", [])))


def refuse_unknown(content: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise ``UserError`` if a grid file has something that is neither a table of a run nor one of these keys."""
    for name in content:
        if name not in ("preset", *TABLES, *keys):
            known = ["preset", *TABLES, *keys]
            raise _wrong(f"unknown key {name!r}{nearest(name, known)}; expected one of {', '.join(known)}")


def _wrong(what: str) -> UserError:
    return UserError(f"{what}.", code="FEDAF-SWEEP-GRID")


def _flat(table: Any) -> dict[str, Any]:
    """Return a table by path. ``method.name = [...]`` and ``"method.name" = [...]`` mean the same."""
    if not isinstance(table, Mapping):
        raise _wrong(f"expected a table of settings such as run.seed, not {table!r}")
    found = {}
    for name, value in table.items():
        inner = value.items() if isinstance(value, Mapping) else [(None, value)]
        for key, one in inner:
            found[name if key is None else f"{name}.{key}"] = one
    return found


def _axes(table: Any, where: str) -> dict[str, list[Any]]:
    """Return the lists of values in a table, by path."""
    axes = _flat(table)
    for path, values in axes.items():
        table_name, _, key = path.partition(".")
        if table_name not in TABLES or not key:
            known = f"expected the path of a setting, such as run.seed, in one of {', '.join(TABLES)}"
            raise _wrong(f"{where} has {path!r}{nearest(table_name, TABLES)}; {known}")
        if not isinstance(values, list):
            raise _wrong(f"{path} in {where} is {values!r}; expected a list of values, such as [{toml_value(values)}]")
        if not values:
            raise _wrong(f"{path} in {where} is an empty list; give it a value, or remove it")
        if twice := [value for number, value in enumerate(values) if value in values[:number]]:
            raise _wrong(f"{path} in {where} has {twice[0]!r} twice; give each value once")
    return axes


def has(settings: Mapping[str, Any], path: str) -> bool:
    """Return whether settings by table have the one at a path."""
    table, _, key = path.partition(".")
    return key in settings.get(table, {})


@dataclass(frozen=True)
class _Own:
    """What the table ``[for.NAME]`` says: the settings of one method, and its lists of options."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, list[Any]] = field(default_factory=dict)


def _own(table: Any, methods: Sequence[str], axes: Mapping[str, Any]) -> dict[str, _Own]:
    if not isinstance(table, Mapping) or not all(isinstance(value, Mapping) for value in table.values()):
        raise _wrong("expected a table for each method in 'for', such as [for.fedavg]")
    found = {}
    for name, content in table.items():
        if name not in methods:
            known = f"expected one of {', '.join(methods)}"
            raise _wrong(f"[for.{name}]{nearest(name, methods)} is not a method of the grid; {known}")
        own = _axes(content.get("grid", {}), f"[for.{name}.grid]")
        fixed = configuration.merge({key: value for key, value in content.items() if key != "grid"})
        outside = [path for path in own if not path.startswith("method.")]
        outside += [path for path in axes if not path.startswith("method.") and has(fixed, path)]
        outside += [path for path in _flat(fixed) if path.startswith(SPLIT)]
        if outside or METHOD in own or has(fixed, METHOD):
            path = outside[0] if outside else METHOD
            raise _wrong(f"[for.{name}] has {path}, which must be the same for all methods; move it out of there")
        if both := [path for path in own if has(fixed, path)]:
            raise _wrong(f"{both[0]} is in [for.{name}.grid] and also fixed in [for.{name}]; remove one of them")
        found[name] = _Own(fixed, own)
    return found


_Combination = tuple[dict[str, Any], dict[str, Any]]  # the values that vary, by path; all given settings, by table


def _combinations(
    methods: Sequence[str],
    axes: Mapping[str, list[Any]],
    fixed: Mapping[str, Any],
    own: Mapping[str, _Own],
    methods_vary: bool,
) -> Iterator[_Combination]:
    """Yield every combination, seeds in the outermost loop and options in the innermost; too many are cut off."""
    fields = {name: set(METHODS.find(name).Options.model_fields) for name in methods}
    of_any = set().union(*fields.values())
    seeds = {path: axes[path] for path in axes if path == SEED}
    settings = {path: axes[path] for path in axes if path != SEED and not path.startswith("method.")}
    options = {path: axes[path] for path in axes if path.startswith("method.")}

    def goes_to(name: str, key: str) -> bool:
        """Whether a method has an option. One that no method has goes to all of them, and is refused."""
        return key in fields[name] or key not in of_any

    def all_of() -> Iterator[_Combination]:
        for seed, setting, name in itertools.product(_product(seeds), _product(settings), methods):
            mine = own.get(name, _Own())
            lists = {path: values for path, values in options.items() if goes_to(name, path.removeprefix("method."))}
            lists = {path: values for path, values in {**lists, **mine.axes}.items() if not has(mine.fixed, path)}
            table = {key: value for key, value in fixed.get("method", {}).items() if goes_to(name, key)}
            base = configuration.merge({**fixed, "method": {**table, "name": name}}, mine.fixed)
            for chosen in _product(lists):
                values = {**({METHOD: name} if methods_vary else {}), **chosen, **setting, **seed}
                layers = (configuration.setting(path, value) for path, value in values.items() if path != METHOD)
                yield values, configuration.merge(base, *layers)

    return itertools.islice(all_of(), _MOST_CELLS)


def _product(axes: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def _without_excluded(combined: list[_Combination], exclude: Any, paths: Sequence[str]) -> list[_Combination]:
    """Leave out the combinations that have all values of one of the tables ``[[exclude]]``."""
    if not isinstance(exclude, list):
        raise _wrong("expected tables of the form [[exclude]], with two pairs of brackets")
    for rule in map(_flat, exclude):
        left = [one for one in combined if not rule.items() <= one[0].items()]
        if not rule or len(left) == len(combined):
            given = ", ".join(f"{path} = {value!r}" for path, value in rule.items()) or "nothing"
            known = f"expected values of {', '.join(paths)} that occur together"
            raise _wrong(f"[[exclude]] with {given} matches no run of the grid; {known}")
        combined = left
    if not combined:
        raise _wrong("[[exclude]] leaves no run of the grid; remove a rule")
    return combined


def _named(combined: Sequence[_Combination], paths: Sequence[str]) -> list[GridCell]:
    compared = [path for path in paths if path.startswith("method.")]
    if not compared:  # the same method with other settings, on the same split
        compared = [path for path in paths if not path.startswith(SPLIT)]
    cells = []
    for values, settings in combined:
        name = settings["method"]["name"]
        variant = [_shown(path, value, paths) for path, value in values.items() if path in compared]
        setting = [_shown(path, value, paths) for path, value in values.items() if path not in (*compared, SEED)]
        directory = "-".join(_part(path, value, paths) for path, value in values.items())
        config = configuration.build(settings)
        text = tomli_w.dumps(settings)
        cells.append(GridCell(directory, ", ".join(variant) or name, ", ".join(setting), config.run.seed, text, values))
    return cells


def _key(path: str, paths: Sequence[str]) -> str:
    """The last part of a path, or all of it if another path ends in the same way. Names need no key."""
    key = path.partition(".")[2]
    if sum(other.endswith(f".{key}") for other in paths) > 1 and path != METHOD:
        return path
    return "" if key == "name" else key


def _text(value: Any) -> str:
    return value if isinstance(value, str) else toml_value(value)


def _shown(path: str, value: Any, paths: Sequence[str]) -> str:
    """How tables show a value: ``fedaf``, ``alpha 0.1``."""
    return f"{_key(path, paths)} {_text(value)}".strip()


def _part(path: str, value: Any, paths: Sequence[str]) -> str:
    """How a directory's name has a value: ``fedaf``, ``alpha0.1``; with a hash if it cannot be in a name as it is."""
    text = _text(value)
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:_LONGEST_VALUE]
    if safe != text:
        safe = f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
    return f"{_key(path, paths)}{safe}"


def _refuse_same(cells: Sequence[GridCell]) -> None:
    """Refuse two cells that would compute the same numbers."""
    seen: dict[Any, GridCell] = {}
    for cell in cells:
        computed = cell.config.run.engine, cell.config.run.precision
        other = seen.setdefault((frozenset(cell.identity.items()), computed), cell)
        if other is not cell:
            differ = [path for path in cell.values if cell.values[path] != other.values.get(path)]
            what = f"{other.directory} and {cell.directory} are the same run, because {', '.join(differ)} has no effect"
            raise _wrong(f"{what} on it; leave it out, or use [[exclude]]")


def _against(given: Any, cells: Sequence[GridCell]) -> str:
    """Return the variant to compare with: one that is named, the first one of a method, or the first one."""
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    if given is None:
        return variants[0]
    for cell in cells:
        if given in (cell.variant, cell.config.method_name):
            return cell.variant
    close = nearest(given, variants) if isinstance(given, str) else ""
    raise _wrong(f"against is {given!r}{close}; expected a method or one of: {'; '.join(variants)}")


def _metrics(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise _wrong(f"metrics is {given!r}; expected a list of names, such as ['loss']")
    for name in given:
        find_metric(name)
    return tuple(dict.fromkeys(given))
