"""Expecting an error by its code."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedaf.errors import FedafError


@contextmanager
def raises(code: str) -> Iterator[pytest.ExceptionInfo[FedafError]]:
    """In the block, an error of fedaf with this code must be raised."""
    with pytest.raises(FedafError) as caught:
        yield caught
    assert caught.value.code == code, f"expected {code}, got {caught.value.labelled}"
