"""placeholder until the kernels are merged"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def allowed() -> Iterator[None]:
    yield


def supports(*a):
    return False


def conv_norm_relu_pool(*a):
    raise AssertionError
