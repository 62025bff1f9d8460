"""A client's state between rounds, committed in two steps so that a lost reply never counts twice.

A phase's new state is first only *pending*, tagged with run and round. The next request tells which round of this
client the server accepted last: pending state of that round is promoted, any other is discarded. So after a lost
reply, a repeated round or a resumed server, the client works from the state the server believes it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import safetensors.torch
import torch

from fedaf.common.files import write_atomically
from fedaf.protocol import Outcome, Tensors, pack, prefixed, select, to_cpu
from fedaf.protocol.transport import Request


@dataclass(frozen=True)
class ClientState:
    run: str = ""
    committed: Tensors = field(default_factory=dict)
    pending: Tensors | None = None
    pending_round: int = 0
    scratch: Tensors = field(default_factory=dict)
    scratch_round: int = 0
    images_sent: int = 0  # over all runs, whatever became of them

    def opened(self, request: Request) -> "ClientState":
        """This state as the request finds it: of this run, promoted or discarded, with this round's scratch only."""
        if request.run != self.run:
            return ClientState(run=request.run, images_sent=self.images_sent)
        state = self
        if state.scratch_round != request.round:
            state = replace(state, scratch={}, scratch_round=request.round)
        if state.pending is not None and state.pending_round != request.round:
            if state.pending_round == request.accepted:
                state = replace(state, committed=state.pending)
            state = replace(state, pending=None)
        return state

    def current(self, request: Request) -> Tensors:
        """What the client works from: its committed state or, once the server has accepted this very round, what this
        round left it."""
        if self.pending is not None and request.accepted == request.round == self.pending_round:
            return self.pending
        return self.committed

    def after(self, request: Request, outcome: Outcome) -> "ClientState":
        """This state once the client has worked: nothing committed, the outcome pending."""
        state = replace(self, images_sent=self.images_sent + outcome.images)
        if outcome.scratch is not None:
            state = replace(state, scratch=to_cpu(outcome.scratch), scratch_round=request.round)
        if outcome.state is not None:
            state = replace(state, pending=to_cpu(outcome.state), pending_round=request.round)
        return state

    def between_rounds(self) -> "ClientState":
        """Without scratch, which does not outlive its round."""
        return replace(self, scratch={}, scratch_round=0)

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """All of it, for a disk."""
        return {
            "run": torch.tensor(list(self.run.encode()), dtype=torch.uint8),
            "pending_round": torch.tensor(self.pending_round if self.pending is not None else -1),
            "scratch_round": torch.tensor(self.scratch_round),
            "images_sent": torch.tensor(self.images_sent),
            **prefixed("committed/", self.committed),
            **prefixed("pending/", self.pending or {}),
            **prefixed("scratch/", self.scratch),
        }

    @classmethod
    def read(cls, path: Path) -> "ClientState":
        """From a client's own disk; a client that was never here before has none."""
        return cls.from_tensors(safetensors.torch.load_file(path)) if path.exists() else cls()

    def write(self, path: Path) -> None:
        write_atomically(path, pack(self.to_tensors()))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> "ClientState":
        round = int(tensors["pending_round"])
        return cls(
            run=bytes(tensors["run"].tolist()).decode(),
            committed=select(tensors, "committed/"),
            pending=select(tensors, "pending/") if round >= 0 else None,
            pending_round=max(round, 0),
            scratch=select(tensors, "scratch/"),
            scratch_round=int(tensors["scratch_round"]),
            images_sent=int(tensors["images_sent"]),
        )
