"""Methods whose clients fail on demand.

The file ``CLIENT`` in the folder ``$FEDAF_TEST_TROUBLE`` has one line per call of the last phase. It says what goes
wrong in that call; nothing does if it is empty or missing.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fedaf.methods.fedaf import FedAF
from fedaf.methods.fedavg import FedAvg
from fedaf.protocol import Client, Engine, Outcome, Payload, Phase, Schema, ServerState, Tensors

FOLDER = "FEDAF_TEST_TROUBLE"


class Troubled(Phase):
    """A phase whose clients may fail."""

    def __init__(self, inner: Phase) -> None:
        self._inner = inner
        self.name = inner.name  # type: ignore[misc]

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return self._inner.ask(server, client_id)

    def schema(self, ask: Payload) -> Schema:
        return self._inner.schema(ask)

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        return self._inner.aggregate(server, replies)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        trouble = _next(client.id)
        if trouble == "raises":
            raise ZeroDivisionError("a bug of this client")
        while trouble == "slow":
            time.sleep(0.05)
            engine.tick(0, 1)
        outcome = self._inner.work_one(ask, client, engine)
        return replace(outcome, reply=Payload(_spoilt(outcome.reply.tensors, trouble), outcome.reply.scalars))


class TroubledFedAvg(FedAvg):
    @property
    def phases(self) -> tuple[Phase, ...]:
        return _with_trouble(super().phases)


class TroubledFedAF(FedAF):
    @property
    def phases(self) -> tuple[Phase, ...]:
        return _with_trouble(super().phases)


def _with_trouble(phases: Sequence[Phase]) -> tuple[Phase, ...]:
    return (*phases[:-1], Troubled(phases[-1]))


def _next(client: str) -> str:
    file = Path(os.environ.get(FOLDER, "")) / client
    if FOLDER not in os.environ or not file.exists():
        return ""
    first, _, rest = file.read_text().partition("\n")
    file.write_text(rest)
    return first


def _spoilt(tensors: Tensors, trouble: str) -> Tensors:
    if trouble not in ("not finite", "wrong shape"):
        return tensors
    name = next(name for name, t in tensors.items() if t.is_floating_point())
    bad = torch.full_like(tensors[name], torch.nan) if trouble == "not finite" else tensors[name][:1]
    return {**tensors, name: bad}
