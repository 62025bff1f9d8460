"""What a client keeps under differential privacy."""

from collections.abc import Callable
from typing import Protocol

from fedaf.protocol.payload import Tensors


class Vault(Protocol):
    """A client's stored private releases, and the record of the privacy budget that they cost."""

    def obtain(
        self,
        name: str,
        *,
        number: int,
        mu: float,
        make: Callable[[], Tensors],
        prepare: Callable[[], None] | None = None,
    ) -> Tensors:
        """Return the release of this name: the stored one, or a new one whose cost is recorded before it is made.

        Args:
            name: Identifies what is released: a hexadecimal digest.
            number: Which release of the run, from 1. There is one release of each number.
            mu: Its cost: the parameter of Gaussian differential privacy.
            make: Adds noise and returns the release.
            prepare: Reads the private data, after the budget was checked and before the cost is recorded.

        Raises:
            Refused: The client's budget does not suffice, or this release of the run has another name. Nothing was
                read.
        """
