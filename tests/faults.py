"""A transport that loses, spoils or refuses what chosen clients do, in chosen rounds and phases."""

from collections.abc import Callable, Mapping

from fedaf.federation.transport import Delivery, Listener, Request, Transport
from fedaf.protocol import Phase, Tensors

#: From (client, request, what the client really delivered) to what the server gets.
Fault = Callable[[str, Request, Delivery], Delivery]


class FaultyTransport:
    """Everything is carried out by ``inner``; then the fault has its way with the answers."""

    def __init__(self, inner: Transport, fault: Fault) -> None:
        self._inner, self._fault = inner, fault

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        deliveries = self._inner.deliver(phase, requests, listener)
        return {client: self._fault(client, requests[client], d) for client, d in deliveries.items()}

    def checkpoint(self) -> Mapping[str, Tensors]:
        return self._inner.checkpoint()

    def restore(self, records: Mapping[str, Tensors]) -> None:
        self._inner.restore(records)
