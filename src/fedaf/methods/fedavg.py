"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017).

Clients train the global model on their own data; the server averages what they return, weighted by their samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from pydantic import Field as Option
from torch import Tensor

from fedaf.protocol import (
    Client,
    Disclosure,
    Engine,
    Method,
    Number,
    Options,
    Outcome,
    Payload,
    Phase,
    Schema,
    ServerState,
    Tensors,
    Workload,
    like,
)
from fedaf.training.fit import fit


class FedAvgOptions(Options):
    local_epochs: int = Option(10, ge=1, description="epochs of local training a round")
    batch_size: int = Option(64, ge=2, description="batch size of local training")
    lr: float = Option(0.01, gt=0, description="learning rate of local training")
    momentum: float = Option(0.9, ge=0, lt=1, description="momentum of local training")


class Fit(Phase):
    name = "fit"

    def __init__(self, method: "FedAvg") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model)

    def schema(self, ask: Payload) -> Schema:
        scalars = {"samples": Number(int, 1, 1 << 40), "loss_ce": Number(float, 0)}
        return Schema(like(ask.tensors), scalars)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        method, options = self.method, self.method.options
        model = method.build_model(client.key)
        model.load_state_dict(ask.tensors)
        losses = fit(
            model,
            client.shard.images,
            client.shard.labels,
            task=method.task,
            epochs=options.local_epochs,
            batch_size=options.batch_size,
            lr=options.lr,
            momentum=options.momentum,
            key=client.key,
            engine=engine,
        )
        scalars = {"samples": len(client.shard), "loss_ce": losses.get("ce", 0.0)}
        return Outcome(Payload(model.state_dict(), scalars))

    def fold(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        samples = {name: float(reply.scalars["samples"]) for name, reply in replies.items()}
        loss = sum(float(r.scalars["loss_ce"]) * samples[name] for name, r in replies.items()) / sum(samples.values())
        model = weighted_average({name: r.tensors for name, r in replies.items()}, samples)
        return replace(server, model=model).with_log(losses={"ce": loss})


class FedAvg(Method):
    Options = FedAvgOptions

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Fit(self),)

    def discloses(self, counts: Sequence[int]) -> Disclosure:
        return Disclosure(fewest_samples=sum(counts))

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        samples = sum(sum(of_client) for of_client in counts.values())
        return Workload(forward=0, backward=self.options.local_epochs * samples)


def weighted_average(models: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """w = sum_k (n_k / n) w_k, statistics included; whole numbers are rounded to whole numbers."""
    total = sum(weights.values())

    def average(name: str) -> Tensor:
        dtype = next(iter(models.values()))[name].dtype
        mean = torch.stack([models[k][name].double() * (weights[k] / total) for k in models]).sum(0)
        return (mean if dtype.is_floating_point else mean.round()).to(dtype)

    return {name: average(name) for name in next(iter(models.values()))}
