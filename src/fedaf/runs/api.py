"""The Python API: run a federation, follow it round by round, continue it, and condense data."""

import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from torch import nn

from fedaf import config as configuration
from fedaf.common.naming import nearest
from fedaf.config import FLAGS, Config
from fedaf.config.synonyms import meant
from fedaf.config.tables import MethodTable
from fedaf.data import in_memory
from fedaf.errors import UserError
from fedaf.federation.observer import Observer, Observers
from fedaf.federation.run_directory import check_new
from fedaf.methods.registry import METHODS
from fedaf.models import custom
from fedaf.models.custom import Factory
from fedaf.runs.assembly import SharedData
from fedaf.runs.comparison import Comparison, Plan, check_names, jobs_left, planned, prepare_all
from fedaf.runs.composition import Play
from fedaf.runs.condense import Condensation, condense_into, one_owner
from fedaf.runs.experiment import Experiment, playing, prepare, reopen
from fedaf.runs.result import RunResult

#: Called with the metrics of each round; if it returns ``True``, the run stops and keeps its result.
OnRound = Callable[[Mapping[str, Any]], bool | None]


class StartedRun(Iterator[Mapping[str, Any]]):
    """A run that plays one round for each step of a loop.

    Each item is the metrics of a round, as in ``metrics.jsonl``. After a ``break``, ``result`` returns the result of
    the rounds that were played. A run with a directory can be resumed later to play the remaining rounds.

    Example:
        >>> active = fedaf.start(dataset="digits", method="fedaf", rounds=50)
        >>> for metrics in active:
        ...     if metrics["accuracy"] > 90:
        ...         break
        >>> active.result().curve
    """

    _result: RunResult | None = None
    _failed = False

    def __init__(self, experiment: Experiment, out: Path | None, observer: Observer, *, new: bool) -> None:
        self._kept = out is not None
        with ExitStack() as stack:
            if out is None:
                out = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedaf-"))) / "run"
            self._play: Play = stack.enter_context(playing(experiment, out, observer, new=new))
            self._stack = stack.pop_all()

    def __next__(self) -> Mapping[str, Any]:
        if self._result is not None:
            raise StopIteration
        self._must_go_on()
        try:
            return next(self._play)
        except StopIteration:
            self.result()
            raise
        except BaseException:
            self._failed = True
            self._stack.__exit__(*sys.exc_info())  # records the failure and releases the directory
            raise

    def result(self) -> RunResult:
        """Stop the run, if rounds are left, and return the result of the rounds that were played."""
        if self._result is None:
            self._must_go_on()
            with self._stack:
                found = self._play.finish()
            self._result = found if self._kept else replace(found, directory=None)
        return self._result

    def _must_go_on(self) -> None:
        if self._failed:
            what = "a round of this run failed, so it has ended; continue it with fedaf.resume"
            raise UserError(f"{what} if it has a directory, or start it again.", code="FEDAF-RUN-ENDED")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.result()
        elif not self._failed:
            self._failed = True
            self._stack.__exit__(*error)


@configuration.accepts_flags
def run(
    *,
    preset: str = "paper",
    dataset: Any = None,
    model: str | nn.Module | Factory | None = None,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    observer: Observer | Sequence[Observer] | None = None,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> RunResult:
    """Run one federation and return its result.

    Every flag of ``fedaf run`` is a keyword argument.

    Args:
        preset: Named values for the data set and the method: ``paper`` or ``quick``.
        dataset: Name of a data set (default: digits), or the data: arrays or tensors
            ``(x_train, y_train, x_test, y_test)``, torch data sets ``(train, test)``, or
            ``{"clients": {...}, "test": ...}``; docs/howto/data.md lists all forms.
        model: Name of a model, a network (a copy is trained), or a function of ``(in_channels, image_size,
            num_classes)`` that returns one.
        out: New directory to keep the run in, from which it can be resumed. Unset: nothing stays on disk.
        on_round: Called with the metrics of each round. If it returns ``True``, the run stops and keeps its result.
        observer: Receives the events of the run; one or several. One that raises is dropped with a warning.
        progress: Show the progress: a bar in a terminal, a line per round elsewhere.
        settings: Any other settings by path: ``{"partition.kind": "iid"}``.
        {flags}
        **options: Options of the method: ``gamma=0.8``.

    Returns:
        The figures of ``result.json``, the trained global model, and the directory of the run.

    Raises:
        UserError: If a setting is unknown or has a wrong value, or the data are missing.

    Example:
        >>> result = fedaf.run(dataset="digits", method="fedaf", alpha=0.1, rounds=3)
        >>> result.best_accuracy
        >>> fedaf.run(rounds=50, on_round=lambda metrics: metrics["accuracy"] > 90)  # stops early
    """
    started = _started(
        run,
        preset=preset,
        dataset=dataset,
        model=model,
        out=out,
        observer=observer,
        progress=progress,
        settings=settings,
        **options,
    )
    return _play_all(started, on_round)


@configuration.accepts_flags
def start(
    *,
    preset: str = "paper",
    dataset: Any = None,
    model: str | nn.Module | Factory | None = None,
    out: str | Path | None = None,
    observer: Observer | Sequence[Observer] | None = None,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> StartedRun:
    """Start a federation whose rounds are played in a loop. The arguments are those of ``fedaf.run``.

    Returns:
        An iterator over the metrics of the rounds. Its ``result()`` stops the run and returns the result.

    Raises:
        UserError: If a setting is unknown or has a wrong value, or the data are missing.

    Example:
        >>> active = fedaf.start(dataset="digits", method="fedaf", rounds=50)
        >>> for metrics in active:
        ...     if metrics["accuracy"] > 90:
        ...         break
        >>> result = active.result()
    """
    return _started(
        start,
        preset=preset,
        dataset=dataset,
        model=model,
        out=out,
        observer=observer,
        progress=progress,
        settings=settings,
        **options,
    )


def _started(
    function: Callable[..., Any],
    *,
    preset: str,
    dataset: Any,
    model: str | nn.Module | Factory | None,
    out: str | Path | None,
    observer: Observer | Sequence[Observer] | None,
    progress: bool,
    settings: Mapping[str, Any] | None,
    **options: Any,
) -> StartedRun:
    """Start a run for a function of the API, whose arguments are checked."""
    given, network, data = _given(dataset, model, settings, options)
    _refuse_unknown(options, function, [str(given["method"].get("name") or MethodTable().name)])
    config = configuration.build(given, preset=preset)
    configuration.refuse_unused(options, config)
    _refuse_lost(config, out)
    observing = _observing(observer, progress)
    experiment = prepare(config, model=network, shared=SharedData(data))
    return StartedRun(experiment, None if out is None else Path(out), observing, new=True)


def resume(
    out: str | Path,
    *,
    rounds: int | None = None,
    dataset: Any = None,
    model: nn.Module | Factory | None = None,
    on_round: OnRound | None = None,
    observer: Observer | Sequence[Observer] | None = None,
    track: str | Sequence[str] | None = None,
    progress: bool = False,
) -> RunResult:
    """Resume a run after its last checkpoint. The result equals that of a run that was never interrupted.

    Args:
        out: The run directory.
        rounds: A new number of rounds in total, to extend a run that may be finished.
        dataset: The data that were passed to ``run``, if it was not a name.
        model: The model that was passed to ``run``, if it was not a name.
        on_round: Called with the metrics of each round. If it returns ``True``, the run stops and keeps its result.
        observer: Receives the events of the run; one or several. One that raises is dropped with a warning.
        track: Trackers, in place of those that the run was started with. They also get the rounds that they miss.
        progress: Show the progress: a bar in a terminal, a line per round elsewhere.

    Returns:
        The result of the whole run.

    Raises:
        UserError: ``out`` is not a run directory, its checkpoint is unreadable, the data or the model changed, or the
            run cannot have this number of rounds.
        InUse: Another process is running in ``out``.

    Example:
        >>> result = fedaf.resume("runs/digits-fedaf-seed0")
    """
    moved = configuration.from_flags(track=track)
    experiment = reopen(Path(out), model=model, moved=moved, shared=SharedData(dataset), rounds=rounds)
    return _play_all(StartedRun(experiment, Path(out), _observing(observer, progress), new=False), on_round)


@partial(configuration.accepts_flags, without=("method",))
def compare(
    *,
    methods: Sequence[str] = ("fedaf", "fedavg"),
    seeds: Sequence[int] | None = None,
    against: str | None = None,
    preset: str = "paper",
    dataset: Any = None,
    model: str | nn.Module | Factory | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods on the same splits, with one or several seeds.

    The arguments that are not listed here are those of ``fedaf.run``. Options of a method go to the methods that have
    them.

    Args:
        methods: Names of the methods.
        seeds: One run per method and seed; every seed has its own split. Unset: the seed of ``run``.
        against: The method that the others are compared with. Unset: the first one.
        preset: Named values for the data set and the methods: ``paper`` or ``quick``.
        dataset: Name of a data set (default: digits), or the data, as for ``fedaf.run``.
        model: Name of a model, a network, or a function that returns one, as for ``fedaf.run``.
        out: New directory to keep all runs in. Unset: nothing stays on disk.
        progress: Show the progress of each run.
        settings: Any other settings by path: ``{"partition.kind": "iid"}``.
        {flags}
        **options: Options of the methods: ``ipc=10``.

    Returns:
        The figures of all runs, and the paired differences between the methods.

    Raises:
        UserError: If a setting is unknown or has a wrong value, or the data are missing.

    Example:
        >>> found = fedaf.compare(methods=["fedaf", "fedavg"], seeds=[0, 1, 2], dataset="digits", alpha=0.1)
        >>> found.differences()[0].verdict
    """
    given, network, data = _given(dataset, model, settings, options)
    if seeds is not None and options.get("seed") is not None:
        raise UserError("seed and seeds exclude each other; use one of them.", code="FEDAF-CLI-SEEDS")
    check_names(methods, seeds)
    _refuse_unknown(options, compare, methods)
    runs = planned(methods, given, preset=preset, seeds=seeds)
    configuration.refuse_unused(options, next(iter(runs.values())))
    _refuse_lost(next(iter(runs.values())), out)
    shared = SharedData(data)
    prepare_one = partial(prepare, model=network, shared=shared)
    plan, prepared = prepare_all(Plan(runs, against), prepare_one)
    with ExitStack() as stack:
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedaf-")))
        else:
            folder = Path(out)
            check_new(folder)
            folder.mkdir(parents=True, exist_ok=True)
        plan.save(folder)
        for job in jobs_left(folder, plan, prepared, prepare_one, shared):
            job.complete(_observing(None, progress))
        found = Comparison.read(folder, plan)
    return found if out is not None else replace(found, directory=None)


@partial(configuration.accepts_flags, without=("clients", "alpha", "participation", "policy", "test_dataset", "track"))
def condense(
    *,
    preset: str = "paper",
    dataset: Any = None,
    model: str | nn.Module | Factory | None = None,
    out: str | Path | None = None,
    observer: Observer | None = None,
    progress: bool = False,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Condensation:
    """Condense a data set of one owner, and measure the accuracy of a fresh model that is trained on the result.

    The arguments that are not listed here are those of ``fedaf.run``.

    Args:
        preset: Named values for the data set and the method: ``paper`` or ``quick``.
        dataset: Name of a data set (default: digits), or the data, as for ``fedaf.run``.
        model: Name of a model, a network, or a function that returns one, as for ``fedaf.run``.
        out: New folder for the set, its card and its run. Unset: nothing stays on disk.
        observer: Receives the events of condensation and of training.
        progress: Show the progress.
        settings: Any other settings by path: ``{"privacy.epsilon": 8.0}``.
        {flags}
        **options: Options of the method: ``local_steps=100``.

    Returns:
        The condensed images, the accuracy and the card.

    Raises:
        UserError: If a setting is unknown, wrong or without effect, the method does not condense, or the data are
            missing.

    Example:
        >>> found = fedaf.condense(dataset="digits", ipc=10, preset="quick", out="digits-10")
        >>> found.accuracy
    """
    given, network, data = _given(dataset, model, settings, options)
    _refuse_unknown(options, condense, [str(given["method"].get("name") or MethodTable().name)])
    experiment = prepare(one_owner(given, preset), model=network, shared=SharedData(data))
    with ExitStack() as stack:
        if out is not None:
            check_new(Path(out))
        folder = Path(out or stack.enter_context(tempfile.TemporaryDirectory(prefix="fedaf-")))
        found = condense_into(experiment, folder, _observing(observer, progress), network)
    return found if out is not None else replace(found, directory=None)


def _play_all(started: StartedRun, on_round: OnRound | None) -> RunResult:
    with started:
        for metrics in started:
            if on_round is not None and on_round(metrics):
                break
    return started.result()


def _observing(observer: Observer | Sequence[Observer] | None, progress: bool) -> Observer:
    """Return one observer for the user's and the progress display."""
    given: list[Any] = list(observer) if isinstance(observer, list | tuple) else [observer]
    given = [] if observer is None else given
    if wrong := [each for each in given if not isinstance(each, Observer)]:
        what = (
            f"observer is {wrong[0]!r}; expected an instance of a class derived from fedaf.Observer, or a list of them"
        )
        raise UserError(f"{what}.", code="FEDAF-OBSERVER-TYPE")
    if not progress:
        return Observers(*given) if given else Observer()
    from rich.console import Console

    from fedaf.reporting.progress import display

    return Observers(display(Console(emoji=False)), *given)


def _refuse_lost(config: Config, out: str | Path | None) -> None:
    """Refuse a tracker that writes into the run directory if the run is not kept."""
    if out is None and "tensorboard" in config.run.track:
        what = "the tracker tensorboard writes into the run directory, and this run is not kept"
        raise UserError(f"{what}; give out= a new directory.", code="FEDAF-TRACKER-NO-DIRECTORY")


def _given(
    dataset: Any,
    model: str | nn.Module | Factory | None,
    settings: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[dict[str, Any], nn.Module | Factory | None, Any]:
    """Return the settings behind the arguments of ``run``, and the model and the data that are not names."""
    network = None if model is None or isinstance(model, str) else model
    data = None if dataset is None or isinstance(dataset, str | Path) else dataset
    flags = {
        **{name: value for name, value in options.items() if name in FLAGS},
        "dataset": dataset if data is None else in_memory.name_of(data),
        "model": model if network is None else custom.name_of(network),
    }
    of_method = {name: value for name, value in options.items() if name not in FLAGS}
    layers = [configuration.setting(path, value) for path, value in (settings or {}).items()]
    return configuration.merge(configuration.from_flags(**flags), {"method": of_method}, *layers), network, data


def _refuse_unknown(options: Mapping[str, Any], function: Callable[..., Any], methods: Sequence[str]) -> None:
    """Refuse keyword arguments that are neither flags nor options of a method."""
    of_methods = list(dict.fromkeys(key for name in methods for key in METHODS.find(name).Options.model_fields))
    accepted = list(dict.fromkeys([*list(inspect.signature(function).parameters)[:-1], *of_methods]))
    for name in options:
        if name not in accepted:
            settings = [path.removeprefix("method.") for path in meant(name, list(methods))]
            hint = f" (did you mean {' or '.join(settings)}?)" if settings else nearest(name, accepted)
            what = f"fedaf.{function.__name__} has no argument {name!r}{hint}"
            raise UserError(f"{what}; expected one of {', '.join(accepted)}.", code="FEDAF-CONFIG-KEY")
