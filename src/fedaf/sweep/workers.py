"""Worker processes that run independent tasks, several at a time.

A worker that dies costs its task only: the task is reported as failed, and another worker takes its place.
"""

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

#: A task's work: called in a worker with the task and a function that sends a line of text to the parent. It must be
#: picklable, and so must tasks and results.
Work = Callable[[Task, Callable[[str], None]], Result]

_SPAWN = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
_STOP_SECONDS = 60.0  # for a worker to checkpoint and end


class WorkerDied(Exception):
    """A worker process ended before its task did."""


@dataclass(frozen=True)
class Report(Generic[Task, Result]):
    """News from a worker: a line of text, or the end of a task with its result or its error."""

    task: Task
    line: str | None = None
    result: Result | None = None
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        return self.line is None


class _Worker:
    def __init__(self, work: Work[Any, Any]) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process = _SPAWN.Process(target=_serve, args=(work, theirs))
        self.process.start()
        theirs.close()  # so that a dead worker ends the connection
        self.task: Any = None

    def give(self, task: Any) -> None:
        self.task = task
        self.connection.send(task)

    def receive(self) -> Report[Any, Any]:
        try:
            kind, value = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            return Report(self.task, error=WorkerDied(f"its process ended with exit code {self.process.exitcode}"))
        return Report(self.task, **{kind: value})


def run_in_workers(
    tasks: Iterable[Task], work: Work[Task, Result], *, workers: int, stop: Callable[[], bool]
) -> Iterator[Report[Task, Result]]:
    """Run tasks in ``workers`` processes, in order of their start.

    Args:
        tasks: What to do.
        work: Does one task.
        workers: How many tasks run at once.
        stop: No task is started once this returns true.

    Yields:
        Reports as they come in; every task that was started ends with one for which ``ended`` is true.
    """
    waiting = deque(tasks)
    idle: list[_Worker] = []
    busy: dict[Connection, _Worker] = {}
    try:
        while True:
            while waiting and len(busy) < workers and not stop():
                worker = idle.pop() if idle else _Worker(work)
                busy[worker.connection] = worker
                worker.give(waiting.popleft())
            if not busy:
                return
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker = busy[ready]
                report = worker.receive()
                if report.ended:
                    worker.task = None
                    del busy[ready]
                    if not isinstance(report.error, WorkerDied):
                        idle.append(worker)
                yield report
    finally:
        _end([*idle, *busy.values()])


def _end(workers: list[_Worker]) -> None:
    """Interrupt workers, so that a run in progress is checkpointed, and wait for them."""
    for worker in workers:
        worker.connection.close()
        if worker.task is not None and worker.process.pid is not None and worker.process.is_alive():
            os.kill(worker.process.pid, signal.SIGINT)
    for worker in workers:
        worker.process.join(_STOP_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()


def _serve(work: Work[Any, Any], connection: Connection) -> None:
    """The main function of a worker: one task after the other until the parent closes the connection."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        while True:
            task = connection.recv()
            try:
                result = work(task, lambda line: connection.send(("line", line)))
            except Exception as error:  # reported to the parent, which decides what it means
                connection.send(("error", _picklable(error)))
            else:
                connection.send(("result", result))
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _picklable(error: Exception) -> Exception:
    """The error itself, or one with the same text where it cannot travel between processes."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception class may do anything when it is copied
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    """Interrupt this worker when its parent has died, however that happened."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGINT)
