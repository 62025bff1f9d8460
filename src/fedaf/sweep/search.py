"""Hyper-parameter search on held-out training images with Optuna.

The study is stored in ``study.db``, and every run of a trial in a directory of its own. A search that was stopped goes
on where it was: no finished run is repeated, and the trials are those of a search that was never stopped.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import tomli_w

from fedaf.common.files import write_atomically
from fedaf.config import build, merge
from fedaf.config.toml import toml_value
from fedaf.errors import UserError
from fedaf.federation.run_directory import refuse_in_use
from fedaf.sweep.budget import Budget
from fedaf.sweep.grid import GridCell
from fedaf.sweep.pace import Pace
from fedaf.sweep.running import Audience, Series
from fedaf.sweep.space import Range, Scalar, Search
from fedaf.sweep.sweep import FolderWork, locked, name_of

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

STUDY, TRIALS, BEST = "study.db", "trials.csv", "best.toml"
_NAME, _PLAN = "fedaf", "plan"


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    Args:
        number: Its number, from 0.
        values: The values of the parameters, by path.
        score: The mean over seeds of the figure that is searched for; ``None`` if a run failed.
    """

    number: int
    values: Mapping[str, Scalar]
    score: float | None


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Args:
        trials: The trials that have ended, in order.
        best: The best of them; ``None`` if none has a score.
        failures: Why runs failed, by their directory.
        is_finished: Whether all trials have ended.
    """

    trials: Sequence[Trial]
    best: Trial | None
    failures: Mapping[str, str]
    is_finished: bool


def run_search(
    search: Search, out: Path, given: Mapping[str, Any], budget: Budget, audience: Audience, *, jobs: int = 1
) -> SearchResult:
    """Run the trials of a search that have not ended.

    Args:
        search: What to search.
        out: The folder of the search, new or to continue.
        given: Settings of the command that say where data are and what computes, by table.
        budget: No run is started after it is spent, and a running one stops after its round.
        audience: Where output goes.
        jobs: Trials that are drawn together and runs that are made at once. The trials depend on it.

    Raises:
        UserError: Optuna is missing, or the folder is in use or holds another search.
        InUse: Another process works on the search.
    """
    optuna = _optuna()
    if not (out / STUDY).is_file():
        refuse_in_use(out)
        audience.prepare(build(merge(search.settings(search.first, search.table.seeds[0]), given)))  # finds mistakes
    out.mkdir(parents=True, exist_ok=True)
    device = given.get("run", {}).get("device") or search.fixed.get("run", {}).get("device", "auto")
    work = FolderWork(out=out, given=given, device=device)
    pace, total = Pace(name_of(device)), search.table.trials
    failures: dict[str, str] = {}
    with locked(out, wait=False), _study(optuna, search, out) as study:
        while (ended := len(_ended(_trials(study, search)))) < total and not budget.spent:
            _ask(optuna, study, search, up_to=min(total, (ended // jobs + 1) * jobs))
            drawn = {number: each for number, each in enumerate(_trials(study, search)) if not each.state.is_finished()}
            by_trial = {number: search.cells(number, each.params) for number, each in drawn.items()}
            cells = [cell for row in by_trial.values() for cell in row]
            series = Series(cells, [cell for cell in cells if work.finished(cell)], work, pace)
            tally = series.run(budget, audience, jobs=jobs)
            if tally.left or tally.busy:
                break
            failures |= {cell.directory: reason for cell, reason in tally.failed.items()}
            for number, row in by_trial.items():
                score = _score(search, work, row)
                state = optuna.trial.TrialState.FAIL if score is None else None
                study.tell(drawn[number].number, score, state)
                if score is not None:
                    audience.say(
                        f"trial {number}: {search.measure.name} {score:.4f} with {_shown(drawn[number].params)}"
                    )
        found = _result(search, _trials(study, search), failures)
    _write(search, found, out)
    return found


def _optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ImportError as error:
        what = "a search needs Optuna, which is not installed; install it with pip install optuna."
        raise UserError(what, code="FEDAF-SWEEP-OPTUNA") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextmanager
def _study(optuna: Any, search: Search, out: Path) -> "Iterator[Study]":
    """Open the study in a folder, or create it; close its file at the end."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{(out / STUDY).resolve()}")
    try:
        direction = "maximize" if search.measure.higher_is_better else "minimize"
        study = optuna.create_study(storage=storage, study_name=_NAME, direction=direction, load_if_exists=True)
        plan = search.plan
        before = study.user_attrs.get(_PLAN, plan)
        if changed := [name for name in plan if before.get(name) != plan[name]]:
            what = f"{out} holds a search with other settings ({changed[0]} was {before.get(changed[0])})"
            raise UserError(f"{what}; choose another --out, or restore the grid file.", code="FEDAF-SWEEP-OTHER")
        study.set_user_attr(_PLAN, plan)
        for each in study.get_trials(deepcopy=False):
            if not each.state.is_finished() and each.params.keys() != search.parameters.keys():
                study.tell(each.number, state=optuna.trial.TrialState.FAIL)  # killed while it was drawn
        yield study
    finally:
        storage.remove_session()
        storage.engine.dispose()


def _trials(study: "Study", search: Search) -> "list[FrozenTrial]":
    """Return all trials in order, without those that were not drawn to the end."""
    found = study.get_trials(deepcopy=False)
    return [trial for trial in found if trial.params.keys() == search.parameters.keys()]


def _ended(trials: "Sequence[FrozenTrial]") -> "list[FrozenTrial]":
    return [trial for trial in trials if trial.state.is_finished()]


def _ask(optuna: Any, study: "Study", search: Search, *, up_to: int) -> None:
    """Draw trials until there are as many. A trial depends on its number and on the trials that have ended."""
    distributions = {path: _distribution(optuna, each) for path, each in search.parameters.items()}
    for number in range(len(_trials(study, search)), up_to):
        study.sampler = optuna.samplers.TPESampler(seed=search.table.sampler_seed + number)
        study.ask(distributions)


def _distribution(optuna: Any, given: Range) -> "BaseDistribution":
    kinds = optuna.distributions
    if given.choices is not None:
        return kinds.CategoricalDistribution(given.choices)  # type: ignore[no-any-return]
    if given.is_whole:
        return kinds.IntDistribution(given.low, given.high, given.log, given.step or 1)  # type: ignore[no-any-return]
    return kinds.FloatDistribution(given.low, given.high, given.log, given.step)  # type: ignore[no-any-return]


def _score(search: Search, work: FolderWork, cells: Sequence[GridCell]) -> float | None:
    """Return the mean over seeds of the figure; ``None`` if a run failed or does not have it."""
    runs = [work.finished(cell) for cell in cells]
    found = [None if run is None else search.measure.read(run.figures) for run in runs]
    known = [value for value in found if value is not None]
    return fmean(known) if len(known) == len(found) else None


def _result(search: Search, trials: "Sequence[FrozenTrial]", failures: Mapping[str, str]) -> SearchResult:
    ended = [Trial(number, each.params, each.value) for number, each in enumerate(trials) if each.state.is_finished()]
    scored = [trial for trial in ended if trial.score is not None]
    sign = 1 if search.measure.higher_is_better else -1
    best = max(scored, key=lambda trial: sign * (trial.score or 0.0), default=None)  # the first of equal ones
    return SearchResult(ended, best, failures, len(ended) >= search.table.trials)


def _shown(values: Mapping[str, Scalar]) -> str:
    return ", ".join(f"{path} = {toml_value(value)}" for path, value in values.items())


def _write(search: Search, found: SearchResult, out: Path) -> None:
    """Write all trials, and the settings of the best one as a file for ``fedaf run``."""
    text, name = io.StringIO(), search.measure.name
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", *search.parameters, name])
    for trial in found.trials:
        writer.writerow([trial.number, *(trial.values[path] for path in search.parameters), trial.score])
    write_atomically(out / TRIALS, text.getvalue())
    if found.best is not None:
        images, seeds = search.fixed["data"]["validation"], ", ".join(map(str, search.table.seeds))
        note = f"# Trial {found.best.number} of {len(found.trials)}: {name} {found.best.score:.4f} on {images} held-out"
        note += f" training images, seeds {seeds}.\n# {_shown(found.best.values)}\n"
        write_atomically(out / BEST, note + tomli_w.dumps(search.best(found.best.values)))
