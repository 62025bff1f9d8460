"""A client's state between rounds, committed in two steps so that a lost reply never counts twice.

The new state of a phase is *pending* at first, tagged with run and round. The next request says which round of this
client the server accepted last. Pending state of that round is committed, any other is discarded. So after a lost
reply, a repeated round or a resumed server, the client works from the state that the server expects.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from fedaf.protocol import Outcome, Request, Tensors, prefixed, select, to_cpu

#: Stands for the class of images that were counted before classes were: totals include them.
UNKNOWN_CLASS = -1


@dataclass(frozen=True)
class ClientState:
    """What one client keeps between requests.

    Args:
        run: The run that the state belongs to.
        committed: State after the last round that the server accepted.
        pending: State after ``pending_round``, which the server may or may not have accepted.
        pending_round: The round of ``pending``.
        scratch: Tensors for the later phases of ``scratch_round``.
        scratch_round: The round of ``scratch``.
        images_sent: Condensed images sent over all runs by class, accepted or not.
    """

    run: str = ""
    committed: Tensors = field(default_factory=dict)
    pending: Tensors | None = None
    pending_round: int = 0
    scratch: Tensors = field(default_factory=dict)
    scratch_round: int = 0
    images_sent: Mapping[int, int] = field(default_factory=dict)

    def opened(self, request: Request) -> "ClientState":
        """Return the state at the start of a request: pending state committed or discarded, old scratch dropped."""
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
        """Return the state that the client works from.

        This is the committed state. After the server accepted the current round (in an evaluation), it is the state
        that this round produced.
        """
        if self.pending is not None and request.accepted == request.round == self.pending_round:
            return self.pending
        return self.committed

    def settled(self, accepted: int) -> Tensors:
        """Return the state after the last round that the server accepted, which is ``accepted``."""
        return self.pending if self.pending is not None and self.pending_round == accepted else self.committed

    def after(self, request: Request, outcome: Outcome) -> "ClientState":
        """Return the state after the client's work, with the outcome pending."""
        state = replace(self, images_sent=dict(Counter(self.images_sent) + Counter(outcome.images)))
        if outcome.scratch is not None:
            state = replace(state, scratch=to_cpu(outcome.scratch), scratch_round=request.round)
        if outcome.state is not None:
            state = replace(state, pending=to_cpu(outcome.state), pending_round=request.round)
        return state

    def between_rounds(self) -> "ClientState":
        """Return the state without scratch, which is only valid within its round."""
        return replace(self, scratch={}, scratch_round=0)

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """Return the whole state as tensors."""
        return {
            "run": torch.tensor(list(self.run.encode()), dtype=torch.uint8),
            "pending_round": torch.tensor(self.pending_round if self.pending is not None else -1),
            "scratch_round": torch.tensor(self.scratch_round),
            "images_sent": torch.tensor(sorted(self.images_sent.items()), dtype=torch.int64).reshape(-1, 2),
            **prefixed("committed/", self.committed),
            **prefixed("pending/", self.pending or {}),
            **prefixed("scratch/", self.scratch),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> "ClientState":
        """Return the state that ``to_tensors`` stored."""
        round = int(tensors["pending_round"])
        return cls(
            run=bytes(tensors["run"].tolist()).decode(),
            committed=select(tensors, "committed/"),
            pending=select(tensors, "pending/") if round >= 0 else None,
            pending_round=max(round, 0),
            scratch=select(tensors, "scratch/"),
            scratch_round=int(tensors["scratch_round"]),
            images_sent=read_images_sent(tensors["images_sent"]),
        )


def read_images_sent(stored: torch.Tensor) -> dict[int, int]:
    """Return the images sent by class, from rows (class, number). Older states have only a total, of unknown class."""
    if stored.ndim == 0:
        return {UNKNOWN_CLASS: int(stored)} if stored else {}
    return dict(stored.tolist())
