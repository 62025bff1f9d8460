"""Comparisons: several methods on the same splits, with one or several seeds.

The directory of a comparison holds ``comparison.json``, its plan, and a run directory for each method and seed.
"""

import json
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from fedaf import config as configuration
from fedaf.common.files import write_atomically
from fedaf.common.naming import nearest, slug
from fedaf.config import Config
from fedaf.errors import UserError
from fedaf.federation.metrics import find_metric
from fedaf.federation.observer import Observer
from fedaf.federation.run_directory import CONFIG, RESULT, read_metrics
from fedaf.methods.registry import METHODS
from fedaf.reporting import differences, figures, tables
from fedaf.reporting.differences import Compared
from fedaf.reporting.statistics import mean_and_deviation
from fedaf.runs.assembly import SharedData
from fedaf.runs.experiment import Experiment, continue_run, execute, reopen
from fedaf.runs.result import needs_pandas

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

COMPARISON = "comparison.json"


@dataclass(frozen=True)
class Plan:
    """What a comparison runs, and what is shown of it.

    Args:
        runs: The configuration of each run, by its directory below that of the comparison.
        against: The method that the others are compared with; ``None``: the first one.
        target: What to show the rounds to, as ``--target`` has it.
        metrics: Metrics and tables to show besides.
    """

    runs: Mapping[str, Config]
    against: str | None = None
    target: str | None = None
    metrics: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.against is not None and self.against not in self.methods:
            raise _not_compared(self.against, self.methods)

    @property
    def methods(self) -> list[str]:
        """The methods, in the order in which they were named."""
        return list(dict.fromkeys(config.method_name for config in self.runs.values()))

    def save(self, folder: Path) -> None:
        """Write the plan into the directory of the comparison."""
        runs = {name: config.to_toml() for name, config in self.runs.items()}
        plan = {"target": self.target, "metrics": list(self.metrics), "against": self.against, "runs": runs}
        write_atomically(folder / COMPARISON, json.dumps(plan, indent=2))

    @classmethod
    def read(cls, folder: Path) -> "Plan":
        """Read the plan of a comparison.

        Raises:
            UserError: The directory is not that of a comparison.
        """
        if (folder / CONFIG).is_file():
            what = f"{folder} holds a single run; continue it with fedaf run --resume {quote(str(folder))}."
            raise UserError(what, code="FEDAF-CLI-NOT-A-COMPARISON")
        try:
            saved = json.loads((folder / COMPARISON).read_text())
            texts = {str(name): tomllib.loads(text) for name, text in saved["runs"].items()}
            shown = saved.get("against"), saved.get("target"), tuple(saved.get("metrics", ()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = f"{folder} is not a comparison of fedaf: it has no readable {COMPARISON}"
            advice = "give a directory that fedaf compare wrote"
            raise UserError(f"{what}; {advice}.", code="FEDAF-CLI-NOT-A-COMPARISON") from error
        against, target, metrics = shown
        runs = {name: configuration.build(settings) for name, settings in texts.items()}
        return cls(runs, against, None if target is None else str(target), metrics)


def _not_compared(method: str, methods: Sequence[str]) -> UserError:
    what = f"the method to compare with is {method!r}{nearest(method, methods)}, which is not compared here"
    return UserError(f"{what}; expected one of {', '.join(methods)}.", code="FEDAF-CLI-AGAINST")


def planned(
    methods: Sequence[str], given: Mapping[str, Any], *, preset: str | None = None, seeds: Sequence[int] | None = None
) -> dict[str, Config]:
    """Return the configuration of each run of a comparison, by its directory below that of the comparison.

    All methods of a seed come before the next seed, so that a comparison that was stopped has whole pairs.

    Args:
        methods: Names of the methods.
        given: Settings by table. Options of the method go to the methods that have them.
        preset: Name of the preset.
        seeds: The seeds; ``None``: the one of ``given``.

    Raises:
        UserError: A method is unknown or named twice, or a setting has a wrong value.
    """
    check_names(methods, seeds)
    if seeds is None:
        return {slug(name): config for name, config in _configs(methods, given, preset).items()}
    runs = {}
    for seed in seeds:
        for name, config in _configs(methods, configuration.merge(given, {"run": {"seed": seed}}), preset).items():
            runs[slug(name) if len(seeds) == 1 else f"{slug(name)}/seed{seed}"] = config
    return runs


def check_names(methods: Sequence[str], seeds: Sequence[int] | None) -> None:
    """Check that there are methods and seeds, and that each is named once.

    Raises:
        UserError: They are not.
    """
    if isinstance(methods, str):
        what = f"the methods are the text {methods!r}; give a list of names, such as ['fedaf', 'fedavg']."
        raise UserError(what, code="FEDAF-CLI-METHODS")
    is_list = isinstance(seeds, Sequence | None) and not isinstance(seeds, str)
    if not is_list or (seeds is not None and (not seeds or len(set(seeds)) < len(seeds))):
        what = f"the seeds are {seeds!r}; give a list of at least one seed, each one once, such as [0, 1, 2]."
        raise UserError(what, code="FEDAF-CLI-SEEDS")
    if twice := [name for name in dict.fromkeys(methods) if list(methods).count(name) > 1]:
        what = f"the methods {', '.join(twice)} are named more than once; name every method once."
        raise UserError(what, code="FEDAF-CLI-METHODS")
    if not methods:
        raise UserError("there is no method to compare, such as fedaf,fedavg.", code="FEDAF-CLI-METHODS")


def _configs(methods: Sequence[str], given: Mapping[str, Any], preset: str | None) -> dict[str, Config]:
    """Build a configuration for each method, with those of the given options that it has.

    An option that no method has goes to all of them, and is refused with the list of valid ones.
    """
    options = {key: value for key, value in given.get("method", {}).items() if key != "name"}
    known = {name: set(METHODS.find(name).Options.model_fields) for name in methods}
    of_any = set().union(*known.values())
    configs = {}
    for name, fields in known.items():
        table = {key: value for key, value in options.items() if key in fields or key not in of_any}
        configs[name] = configuration.build({**given, "method": {"name": name, **table}}, preset=preset)
    return configs


@dataclass(frozen=True)
class Job:
    """What is left to do of a run of a comparison.

    Args:
        run: Its directory.
        experiment: The prepared experiment.
        rounds_done: Rounds before it was stopped; ``None`` if it was never started.
    """

    run: Path
    experiment: Experiment
    rounds_done: int | None = None

    @property
    def left(self) -> float:
        """The part of its rounds that is left."""
        return 1 - (self.rounds_done or 0) / self.experiment.config.run.rounds

    def complete(self, observer: Observer) -> None:
        """Start the run, or continue it, and bring it to its end."""
        start = execute if self.rounds_done is None else continue_run
        start(self.experiment, self.run, observer)


def prepare_all(plan: Plan, prepare: Callable[[Config], Experiment]) -> tuple[Plan, dict[str, Experiment]]:
    """Prepare every run before the first one starts, so that no mistake is found hours later.

    Args:
        plan: The plan.
        prepare: Prepares one run.

    Returns:
        The plan with the configurations that the runs are started with, and the prepared runs.
    """
    experiments = {name: prepare(config) for name, config in plan.runs.items()}
    return replace(plan, runs={name: each.config for name, each in experiments.items()}), experiments


def jobs_left(
    folder: Path,
    plan: Plan,
    prepared: Mapping[str, Experiment],
    prepare: Callable[[Config], Experiment],
    shared: SharedData,
) -> Iterator[Job]:
    """Yield the runs of a comparison that are not finished.

    Args:
        folder: The directory of the comparison.
        plan: Its plan.
        prepared: Runs that are prepared already.
        prepare: Prepares any other run that was never started.
        shared: Loads the data of stopped runs.
    """
    for name, config in plan.runs.items():
        run = folder / name
        if (run / RESULT).is_file():
            continue
        if (run / CONFIG).is_file():
            yield Job(run, reopen(run, shared=shared), len(read_metrics(run)))
        else:
            yield Job(run, prepared.get(name) or prepare(config))


@dataclass(frozen=True, repr=False)
class Comparison:
    """The results of several methods on the same splits.

    Args:
        results: The content of ``result.json`` of each run.
        against: The method that the others are compared with.
        directory: The directory of the comparison; ``None`` if it was not kept.

    Example:
        >>> found = fedaf.compare(methods=["fedaf", "fedavg"], seeds=[0, 1, 2], dataset="digits")
        >>> found
        >>> found.differences()
        >>> found.to_frame().groupby("method")["best_accuracy"].mean()
    """

    results: Sequence[Mapping[str, Any]]
    against: str
    directory: Path | None = None

    @classmethod
    def read(cls, folder: Path, plan: Plan) -> "Comparison":
        """Read the results of a finished comparison."""
        results = [figures.read_result(folder / name) for name in plan.runs]
        return cls(results, plan.against or plan.methods[0], folder)

    def __repr__(self) -> str:
        """Return the best test round of each method, on one line."""
        found = {method: [run["best_accuracy"] for run in runs] for method, runs in self.by_method.items()}
        means = [f"{name} {mean_and_deviation(values)} %" for name, values in found.items() if None not in values]
        return f"Comparison({tables.title_of(self.results)}; best test round: {', '.join(means)})"

    @property
    def by_method(self) -> dict[str, list[Mapping[str, Any]]]:
        """The results of each method, one per seed."""
        return tables.by_method(self.results)

    def differences(self, against: str | None = None, metrics: Sequence[str] = ()) -> list[Compared]:
        """Compare every method with one of them, seed by seed.

        Args:
            against: The method to compare with; unset: the one that the comparison was made for.
            metrics: Metrics after the last round to compare, besides the best and the last accuracy.

        Returns:
            For each method and figure the mean difference, its 95 % interval and the verdict.

        Raises:
            UserError: The method is not compared here, or there is no such metric.
        """
        chosen = against or self.against
        if chosen not in self.by_method:
            raise _not_compared(chosen, list(self.by_method))
        for name in metrics:
            find_metric(name)
        return differences.differences(self.results, chosen, differences.measures(metrics))

    def to_frame(self) -> "pandas.DataFrame":
        """Return the figures as a pandas table with one row per run.

        Raises:
            UserError: pandas is not installed.
        """
        return needs_pandas("Comparison.to_frame").DataFrame(differences.as_rows(self.results))

    def plot(self) -> "Figure":
        """Return a matplotlib figure of the test accuracy by round: the mean over seeds, with a band."""
        return figures.curves_figure(self.results)
