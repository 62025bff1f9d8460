"""A small method that keeps client state: each client counts the rounds the server accepted of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedaf.protocol import Client, Engine, Field, Method, Number, Outcome, Payload, Phase, Schema, ServerState


@dataclass(frozen=True)
class Memory:
    """The sum of all noise the server received."""

    noise: Tensor = field(default_factory=lambda: torch.zeros(3))


class Count(Phase):
    name = "count"

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(scalars={"round": server.round})

    def schema(self, ask: Payload) -> Schema:
        return Schema({"noise": Field(torch.float32, (3,))}, {"rounds": Number(int, 0)})

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        rounds = int(client.state.get("rounds", torch.tensor(0))) + 1
        engine.tick(1, 1)
        noise = torch.rand(3, generator=client.key.torch())
        return Outcome(Payload({"noise": noise}, {"rounds": rounds}), state={"rounds": torch.tensor(rounds)})

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        noise = torch.stack([reply.tensors["noise"] for reply in replies.values()]).sum(0)
        return replace(server, memory=Memory(server.memory.noise + noise)).with_log(
            rounds={client: reply.scalars["rounds"] for client, reply in replies.items()}
        )


class Tally(Method):
    Memory = Memory

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Count(),)
