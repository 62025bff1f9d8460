"""Several pieces of work at the same time, each in a thread of its own.

On a CPU, two small networks that train in one thread each are faster than one network in two threads: the operations of
a step are too short to divide. PyTorch releases Python's interpreter lock while it computes. On a GPU, the steps of one
small network leave most of the device idle.

Most code may draw from PyTorch's global generators, as the constructors of layers do. So work holds these generators,
and really runs at the same time only where it releases them: on a CPU in training steps and predictions, on a GPU while
it waits for the device. The caller holds them while it uses a result.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

from fedaf.protocol import generators_held, generators_released

if TYPE_CHECKING:
    from fedaf.engine.eager import EagerEngine

AnyEngine = TypeVar("AnyEngine", bound="EagerEngine")
Item = TypeVar("Item")
Result = TypeVar("Result")


class _Stopped(Exception):
    """Ends a thread whose result nobody waits for."""


def side_by_side(
    engine: AnyEngine, work: Callable[[Item, AnyEngine], Result], items: Sequence[Item], at_once: int
) -> Iterator[Result]:
    """Yield ``work(item, engine)`` for each item, in order.

    PyTorch's threads and the memory budget are divided among the items that run at the same time.

    Args:
        engine: Its listener is told the steps of all items that were not yet yielded, added up.
        work: Called with an item and the engine to compute with, in another thread.
        items: What to work on.
        at_once: How many run at the same time, at least 2.
    """
    threads, stopped, lock = torch.get_num_threads(), threading.Event(), threading.Lock()
    steps: dict[int, int] = {}

    def run(number: int, item: Item) -> Result:
        def listen(done: int, total: int) -> None:
            if stopped.is_set():
                raise _Stopped
            with lock:
                steps[number] = done
                engine.listener(sum(steps.values()), total)

        with generators_held():
            return work(item, engine.watch(listen).within(engine.budget // at_once))

    each = max(1, threads // at_once)
    pool = ThreadPoolExecutor(at_once, "fedaf-work", initializer=torch.set_num_threads, initargs=(each,))
    with generators_held():
        try:
            for number, future in enumerate([pool.submit(run, *pair) for pair in enumerate(items)]):
                with generators_released():
                    result = future.result()
                with lock:
                    steps.pop(number, None)
                yield result
        finally:
            stopped.set()
            with generators_released():
                pool.shutdown(cancel_futures=True)
            torch.set_num_threads(threads)  # the threads above set it for the whole process
