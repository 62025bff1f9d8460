"""All clients in this process, on one device: they compute each phase as one cohort."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from fedaf.client.serving import Admission, serve
from fedaf.client.state import ClientState
from fedaf.engine import EagerEngine
from fedaf.protocol import DeadlineExceeded, Delivery, Failed, Listener, Phase, Request, Shard, Silent, Tensors, Vault

log = logging.getLogger(__name__)


class LocalTransport:
    """A transport whose clients live in this process.

    Args:
        shards: Each client's data.
        engine: Computes for all of them.
        admission: The policy of all clients, if there is one.
        vault: Returns a client's vault for a request, in runs with differential privacy.
    """

    def __init__(
        self,
        shards: Mapping[str, Shard],
        engine: EagerEngine,
        admission: Admission | None = None,
        vault: Callable[[str, Request], Vault] | None = None,
    ) -> None:
        self._shards, self._engine, self._admission, self._vault = shards, engine, admission, vault
        self._states: dict[str, ClientState] = {}

    def clients(self) -> Sequence[str]:
        return list(self._shards)

    def deliver(self, phase: Phase, requests: Mapping[str, Request], listener: Listener) -> Mapping[str, Delivery]:
        seconds = min((r.seconds for r in requests.values() if r.seconds is not None), default=None)
        engine = self._engine.until(time.monotonic() + seconds if seconds is not None else None)
        deliveries: dict[str, Delivery] = {}

        def attempt(cohort: Mapping[str, Request]) -> None:
            try:
                deliveries.update(self._work(phase, cohort, engine, listener))
            except DeadlineExceeded:
                raise
            except Exception as error:  # a client's code or data may raise anything; only its own reply is lost
                log.debug("phase %s failed for %s", phase.name, ", ".join(cohort), exc_info=error)
                if len(cohort) == 1:
                    deliveries.update(dict.fromkeys(cohort, Failed.from_error(error)))
                    return
                for name in [name for name in cohort if name not in deliveries]:  # find out which one failed
                    attempt({name: cohort[name]})

        with suppress(DeadlineExceeded):
            attempt(requests)
        return {client: deliveries.get(client, Silent()) for client in requests}

    def checkpoint(self) -> Mapping[str, Tensors]:
        return {client: state.between_rounds().to_tensors() for client, state in self._states.items()}

    def restore(self, records: Mapping[str, Tensors]) -> None:
        self._states = {client: ClientState.from_tensors(tensors) for client, tensors in records.items()}

    def _work(
        self, phase: Phase, requests: Mapping[str, Request], engine: EagerEngine, listener: Listener
    ) -> Iterator[tuple[str, Delivery]]:
        """Serve a cohort, and keep each client's state as soon as it is known."""
        names = list(requests)
        together = type(phase).work is not Phase.work
        served = 0

        def tick(done: int, total: int) -> None:
            if together:
                listener(names[0] if len(names) == 1 else f"{len(names)} clients", done, total)
            else:
                listener(names[min(served, len(names) - 1)], served * total + done, len(names) * total)

        answers = serve(phase, requests, self._shards, self._states, engine.watch(tick), self._admission, self._vault)
        for name, delivery, state in answers:
            self._states[name] = state
            yield name, delivery
            served += 1
            if not together:
                listener(name, served, len(names))
