"""The interface between the federation and the transports that carry its messages."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fedaf.protocol.contract import Phase
from fedaf.protocol.messages import Delivery, Request
from fedaf.protocol.payload import Tensors

#: Called during a phase with the client at work (or a label for several), the steps done and the steps in total.
Listener = Callable[[str, int, int], None]


class Transport(Protocol):
    """Delivers requests to clients and returns one delivery per request.

    A transport never raises because of a client: a client's error is ``Failed``, a missing reply is ``Silent``.
    """

    def clients(self) -> Sequence[str]:
        """Return the clients that can be asked now, in an order that does not depend on when they connected.

        Raises:
            BelowQuorum: Too few clients connected in time.
        """

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        """Deliver the requests of one phase.

        A client that does not reply within ``Request.seconds`` is ``Silent``. Later replies must be dropped, because
        a schema cannot tell the replies of two rounds apart.

        Args:
            phase: The phase that all requests belong to.
            requests: One request per client.
            listener: Receives the progress of the exchange.

        Returns:
            One delivery per request.
        """

    def checkpoint(self) -> Mapping[str, Tensors]:
        """Return the state of clients that live in this process; empty if clients keep their own state."""

    def restore(self, records: Mapping[str, Tensors]) -> None:
        """Restore what ``checkpoint`` returned."""
