"""placeholder until the kernels are merged"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def allowed() -> Iterator[None]:
    yield
