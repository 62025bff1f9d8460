"""A process in which the plain loops run as they would in a program of their own."""

import multiprocessing
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Self

import torch

from fedaf.engine.allocation import return_freed_memory
from fedaf.errors import FedafError

if TYPE_CHECKING:
    from fedaf.bench.suite import Bench
    from fedaf.bench.timing import Clock


class ReferenceProcess:
    """Times the references of a bench in another process, which is ended on leaving the block.

    Args:
        make: Makes the bench there.
    """

    def __init__(self, make: "Callable[[], Bench]") -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, make, torch.get_num_threads())
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def time(self, number: int) -> float:
        """Return the seconds of the reference of one benchmark."""
        try:
            self._connection.send(number)
            seconds: float = self._connection.recv()
        except (EOFError, OSError):
            what = "the process of the plain loop ended unexpectedly"
            raise FedafError(f"{what}; see the message above.", code="FEDAF-BENCH-FAILED") from None
        return seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()  # which ends the process
        self._process.join()


def _serve(connection: Connection, make: "Callable[[], Bench]", threads: int) -> None:
    torch.set_num_threads(threads)
    bench = make()
    return_freed_memory()
    prepared: tuple[int, Clock] | None = None
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            number = connection.recv()
            if prepared is None or prepared[0] != number:
                prepared = None  # frees the memory of the one before
                prepared = number, bench.benchmarks[number].reference_clock(bench.engine.device)
            connection.send(prepared[1]())
