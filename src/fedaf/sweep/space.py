"""The ``[search]`` table of a grid file: which settings to search, within which ranges, and what to judge them by.

data.validation = 300                             # images to judge by, held out from the training set

[search]
trials = 20

[search.parameters]
method.server_lr = { low = 1e-3, high = 1e-1, log = true }
method.ipc = { low = 5, high = 50, step = 5 }
method.cdc = { choices = [true, false] }
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tomli_w
from pydantic import Field

from fedaf import config as configuration
from fedaf.common.naming import nearest
from fedaf.common.options import Options
from fedaf.config.tables import TABLES
from fedaf.config.toml import validate
from fedaf.errors import UserError
from fedaf.federation.metrics import METRICS
from fedaf.reporting.differences import Measure, measures
from fedaf.sweep.grid import METHOD, SEED, SPLIT, GridCell, has, refuse_unknown

KEY = "search"
#: Settings that change what is to be learned or by which method, and not how.
_TASK = (*SPLIT, METHOD)

Scalar = bool | int | float | str


class SearchTable(Options):
    """The ``[search]`` table."""

    trials: int = Field(ge=1, le=100_000, description="number of trials")
    metric: str = Field("last_accuracy", description="figure of a run to judge it by")
    seeds: list[int] = Field([100], min_length=1, description="seeds of a trial's runs; their mean counts")
    sampler_seed: int = Field(0, ge=0, lt=2**31, description="seed of the sampler, which draws the trials")
    parameters: dict[str, Any] = Field(min_length=1, description="range of each parameter, by path")


class Range(Options):
    """The values of one parameter: numbers from ``low`` to ``high``, or ``choices``."""

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = Field(None, gt=0)
    choices: list[Scalar] | None = Field(None, min_length=1)

    @property
    def is_whole(self) -> bool:
        """Whether it has whole numbers only."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> list[Scalar]:
        """The values to check before the first run."""
        if self.choices is not None:
            return self.choices
        assert self.low is not None
        assert self.high is not None
        return [self.low, self.high]


@dataclass(frozen=True)
class Search:
    """What a search does.

    Args:
        table: The ``[search]`` table.
        parameters: The range of each parameter, by path.
        measure: The figure to judge runs by.
        fixed: The settings of all runs, by table.
    """

    table: SearchTable
    parameters: Mapping[str, Range]
    measure: Measure
    fixed: Mapping[str, Any]

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> "Search":
        """Read a grid file with a ``[search]`` table.

        Raises:
            UserError: Something in it is unknown, contradictory or has a wrong value.
        """
        if "grid" in content:
            raise _wrong("the file has both [grid] and [search]; use a file for each")
        refuse_unknown(content, [KEY])
        if not isinstance(content[KEY], Mapping):
            raise _wrong("'search' is not a table; write [search]")
        table = validate(SearchTable, content[KEY], table=KEY, owner="[search]")
        fixed = configuration.merge({name: value for name, value in content.items() if name != KEY})
        found = cls(table, dict(_ranges(table.parameters, fixed)), _measure(table.metric), fixed)
        if len(set(table.seeds)) < len(table.seeds):
            raise _wrong(f"search.seeds is {table.seeds}; give each seed once")
        if has(fixed, SEED):
            raise _wrong("run.seed is fixed, but a search has seeds of its own; use search.seeds instead")
        if not has(fixed, "data.validation"):
            advice = "add data.validation = N to judge trials on N held-out training images"
            raise _wrong(f"a search must not look at the test set; {advice}")
        found.check()
        return found

    def check(self) -> None:
        """Build the configuration at the ends of every range, so that wrong values are found before the first run."""
        for path, each in self.parameters.items():
            for value in each.ends:
                configuration.build(self.settings({**self.first, path: value}, self.table.seeds[0]))

    @property
    def first(self) -> dict[str, Scalar]:
        """One value of each parameter."""
        return {path: each.ends[0] for path, each in self.parameters.items()}

    @property
    def plan(self) -> dict[str, Any]:
        """What must stay the same when a search is continued. The number of trials may change."""
        plan = {f"search.{name}": value for name, value in self.table.model_dump().items() if name != "trials"}
        return plan | {"the fixed settings": dict(self.fixed)}

    def settings(self, values: Mapping[str, Scalar], seed: int) -> dict[str, Any]:
        """Return the settings of a run with these values of the parameters."""
        layers = (configuration.setting(path, value) for path, value in {**values, SEED: seed}.items())
        return configuration.merge(self.fixed, *layers)

    def cells(self, trial: int, values: Mapping[str, Scalar]) -> list[GridCell]:
        """Return the runs of a trial, one per seed."""
        name = f"trial-{trial:04d}"
        return [
            GridCell(f"{name}-seed{seed}", name, "", seed, tomli_w.dumps(self.settings(values, seed)), values)
            for seed in self.table.seeds
        ]

    def best(self, values: Mapping[str, Scalar]) -> dict[str, Any]:
        """Return the settings to use with the best values: those of the file, without the held-out images."""
        found = configuration.merge(self.fixed, *(configuration.setting(*item) for item in values.items()))
        data = {key: value for key, value in found["data"].items() if key != "validation"}
        return {name: data if name == "data" else table for name, table in found.items() if name != "data" or data}


def _wrong(what: str) -> UserError:
    return UserError(f"{what}.", code="FEDAF-SWEEP-SEARCH")


def _ranges(parameters: Mapping[str, Any], fixed: Mapping[str, Any]) -> Iterator[tuple[str, Range]]:
    for path, given in _by_path(parameters):
        table, _, key = path.partition(".")
        if table not in TABLES or not key:
            expected = "expected the path of a setting, such as method.server_lr"
            raise _wrong(f"[search.parameters] has {path!r}{nearest(table, TABLES)}; {expected}")
        if path.startswith(_TASK):
            raise _wrong(f"{path} changes what is to be learned, so it cannot be searched; fix it, or use [grid]")
        if has(fixed, path):
            raise _wrong(f"{path} is in [search.parameters] and also a fixed setting; remove one of them")
        form = "{ low = 0.001, high = 0.1 } or { choices = [1, 2] }"
        if not isinstance(given, Mapping):
            raise _wrong(f"{path} in [search.parameters] is {given!r}; expected a range, such as {form}")
        found = validate(Range, given, table=path, owner="a range")
        if found.choices is not None:
            if len(given) > 1:
                raise _wrong(f"{path} has choices and also {', '.join(sorted({*given} - {'choices'}))}; use one form")
        elif found.low is None or found.high is None or not found.low < found.high:
            raise _wrong(f"{path} needs low and high, with low below high, or choices; expected {form}")
        elif found.log and (found.low <= 0 or found.step is not None):
            raise _wrong(f"{path} with log = true needs low above 0 and no step")
        elif found.is_whole and isinstance(found.step, float):
            raise _wrong(f"{path} has whole numbers, but step is {found.step:g}; expected a whole number")
        yield path, found


def _by_path(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield ranges by path. ``method.ipc = {...}`` and ``"method.ipc" = {...}`` mean the same."""
    for name, value in parameters.items():
        if "." in name or not isinstance(value, Mapping):
            yield name, value
        else:
            yield from ((f"{name}.{key}", each) for key, each in value.items())


def _measure(name: str) -> Measure:
    known = {one.name: one for one in measures(list(METRICS))}
    if name not in known:
        raise _wrong(f"search.metric is {name!r}{nearest(name, known)}; expected one of {', '.join(known)}")
    return known[name]
