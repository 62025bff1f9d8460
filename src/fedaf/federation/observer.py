"""Observers: objects that follow the progress of a run."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

log = logging.getLogger(__name__)

#: How a run ended: all its rounds are played or it was stopped with a result; an error; stopped, and can be resumed.
Status = Literal["finished", "failed", "interrupted"]


class StopRun(Exception):
    """Raised by an observer to stop a run. What was checkpointed is kept, and the run can be resumed.

    Example:
        >>> class StopAtNoon(fedaf.Observer):
        ...     def round_ended(self, metrics):
        ...         if datetime.now().hour >= 12:
        ...             raise fedaf.StopRun("it is noon")
    """


@dataclass(frozen=True)
class RunInfo:
    """What an observer learns about a run before its first round.

    Args:
        run: Name of the run. It is unique, and the same after the run was killed and resumed.
        title: Method and data set, for people.
        directory: The run directory. It is deleted at the end of a run that is not kept.
        settings: Every setting under its flat name: ``{"run.seed": 0, "method.name": "fedaf", ...}``.
        versions: Versions of fedaf, PyTorch and Python.
        rounds: Number of the last round.
        history: In a resumed run, the lines of ``metrics.jsonl`` of the rounds that are kept; the next round follows.
        images: The shared images of the last round of ``history``, as in ``Observer.images_shared``.
    """

    run: str
    title: str
    directory: Path
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    rounds: int
    history: Sequence[Mapping[str, Any]] = ()
    images: Mapping[str, Path] = field(default_factory=dict)


class Observer:
    """Base class of objects that follow a run. Override the events that you need.

    Pass observers to ``fedaf.run`` as ``observer=``, or name the class with ``--track module:Class``; it is then made
    without arguments. The base class ignores everything except failed clients, which it logs as warnings.

    An observer cannot damage a run. If it raises an exception, it is dropped with one warning, and the run continues
    with the same numbers. To stop a run, raise ``StopRun``.

    Events come in this order: ``described`` and ``started``; for each round ``round_started``, then for each phase
    ``phase_started`` and ``progressed``, then, once the round is checkpointed, ``images_shared`` and ``round_ended``;
    last ``ended`` and ``closed``. A run that is killed sends no more events. If it was killed between a checkpoint and
    ``round_ended``, this round is in ``RunInfo.history`` when the run is resumed.

    Example:
        >>> class Csv(fedaf.Observer):
        ...     def described(self, info):
        ...         self.file = info.directory / "accuracy.csv"
        ...         self.file.write_text("round,accuracy\\n")
        ...         for metrics in info.history:  # of a resumed run
        ...             self.round_ended(metrics)
        ...
        ...     def round_ended(self, metrics):
        ...         with self.file.open("a") as file:
        ...             file.write(f"{metrics['round']},{metrics['accuracy']}\\n")
        >>> fedaf.run(dataset="digits", rounds=3, out="runs/first", observer=Csv())
    """

    def described(self, info: RunInfo) -> None:
        """Called first, with what is known about the run.

        Args:
            info: Name, settings, directory and versions, and the rounds before a resume.
        """

    def started(self, *, title: str, rounds: int, first_round: int, phases: int, device: str) -> None:
        """Called once before the first round.

        Args:
            title: Method and data set, for people.
            rounds: Number of the last round.
            first_round: The round that comes next; above 1 in a resumed run.
            phases: Exchanges with clients per round.
            device: Where the server computes.
        """

    def round_started(self, round: int) -> None:
        """Called at the start of each round."""

    def phase_started(self, name: str, clients: int) -> None:
        """Called at the start of each phase; ``clients`` is 0 for the server's own work."""

    def progressed(self, who: str, done: int, total: int) -> None:
        """Called during a phase with the client at work (or a label for several), and its steps."""

    def client_failed(self, round: int, phase: str, client: str, reason: str) -> None:
        """Called for each client whose reply does not count; ``reason`` ends with the error's code if it has one."""
        log.warning("round %d: %s is out (%s: %s)", round, client, phase, reason)

    def images_shared(self, round: int, files: Mapping[str, Path]) -> None:
        """Called after each round in which clients have shared images, before ``round_ended``.

        Args:
            round: The round, which is checkpointed.
            files: For each client, a PNG file of the run directory with one row of images per class. A later round
                replaces it.
        """

    def round_ended(self, metrics: Mapping[str, Any]) -> None:
        """Called after each round is checkpointed, with its line of ``metrics.jsonl``.

        ``fedaf.federation.summary.flat`` returns its numbers under flat names, such as ``losses.ce``.
        """

    def ended(self) -> None:
        """Called once after the last round, or when the run is interrupted. ``result.json`` is not yet written."""

    def closed(self, status: Status, reason: str) -> None:
        """Called last, after ``result.json`` is written.

        Args:
            status: ``finished``, ``failed`` or ``interrupted``.
            reason: The error if the run failed; else empty.
        """


EVENT_NAMES = [name for name in vars(Observer) if not name.startswith("_")]


class Observers(Observer):
    """Forwards every event to several observers, in order. One that raises an exception is dropped with a warning.

    Args:
        observers: The observers. Only ``StopRun`` and what is not an ``Exception`` (Ctrl-C) leave them.
        essential: Observers that the run depends on. They come first, and what they raise ends the run.
    """

    def __init__(self, *observers: Observer, essential: Sequence[Observer] = ()) -> None:
        self._essential, self._observers = list(essential), list(observers)
        for name in EVENT_NAMES:
            setattr(self, name, partial(self._forward, name))

    def _forward(self, name: str, *arguments: Any, **fields: Any) -> None:
        for observer in self._essential:
            getattr(observer, name)(*arguments, **fields)
        stop = None
        for observer in list(self._observers):
            try:
                getattr(observer, name)(*arguments, **fields)
            except StopRun as error:
                stop = error  # once the others know of the event too
            except Exception as error:  # a user's observer may raise anything
                self._drop(observer, name, error)
        if stop is not None:
            raise stop

    def _drop(self, observer: Observer, name: str, error: Exception) -> None:
        if not any(each is observer for each in self._observers):
            return  # another thread was faster
        self._observers = [each for each in self._observers if each is not observer]
        kind, what = type(observer).__qualname__, " ".join(f"{type(error).__name__}: {error}".split())[:300]
        log.warning("the observer %s is dropped: its %s raised %s; the run continues without it", kind, name, what)
        log.debug("%s.%s failed", kind, name, exc_info=error)


def ending(error: BaseException | None) -> tuple[Status, str]:
    """Return how a run ended that this error left, and the error in words."""
    if error is None:
        return "finished", ""
    if isinstance(error, StopRun) or not isinstance(error, Exception):
        return "interrupted", ""
    return "failed", " ".join(f"{type(error).__name__}: {error}".split())
