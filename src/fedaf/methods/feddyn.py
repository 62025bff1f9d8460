"""FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR 2021).

Each client keeps h_k, the sum of its past drifts. It minimises

    L(theta) + alpha_k <theta, h_k - w> + alpha_k / 2 ||theta||^2,      alpha_k = alpha * mean(n) / n_k,

then updates h_k <- h_k + theta_k - w. The server sends w: the mean of theta_k over the clients that replied, plus the
mean of h_k over all clients. Accuracy is that of the mean of theta_k. Running statistics are averaged as in FedAvg and
are no part of h.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, AveragingOptions, parameters_of, samples_of, weighted_average
from fedaf.protocol import Client, Engine, Key, Number, Outcome, Payload, Phase, Schema, ServerState, Tensors
from fedaf.training.fit import Loss, Weighted, cross_entropy


@dataclass(frozen=True)
class FedDynMemory:
    """What the server keeps.

    Args:
        sent: w, by parameter; empty in round 1, when the initial model is sent.
        drift: The mean of h_k over all clients, by parameter; empty is zero.
        samples: n_k of every client that ever reported it.
    """

    sent: Tensors = field(default_factory=dict)
    drift: Tensors = field(default_factory=dict)
    samples: Mapping[str, float] = field(default_factory=dict)


class FedDynOptions(AveragingOptions):
    """Options of FedDyn."""

    alpha: float = Option(0.01, gt=0, description="weight of the dynamic regulariser")


def dynamic_regulariser(model: nn.Module, linear: Tensors) -> Tensor:
    """Return <theta, h_k - w> + ||theta||^2 / 2 over the trainable parameters; ``linear`` is h_k - w."""
    return torch.stack([(p * linear[name] + p.square() / 2).sum() for name, p in model.named_parameters()]).sum()


class Count(Phase):
    """Up: n_k. The server needs its mean, so that alpha_k is right from the first round on."""

    name = "count"

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload()

    def schema(self, ask: Payload) -> Schema:
        return Schema(scalars={"samples": Number(int, 0, averaging.MOST_SAMPLES)})

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return Outcome(Payload(scalars={"samples": len(client.shard)}))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        memory: FedDynMemory = server.memory
        samples = {name: float(reply.scalars["samples"]) for name, reply in replies.items()}
        return replace(server, memory=replace(memory, samples={**memory.samples, **samples}))


class Fit(averaging.Fit):
    """Down: w, and the mean of n_k over the clients known so far. Up: theta_k."""

    loss_names = ("ce", "dyn")
    signed = ("dyn",)
    clip = 10.0

    def ask(self, server: ServerState, client_id: str) -> Payload:
        memory: FedDynMemory = server.memory
        mean, plain = sum(memory.samples.values()) / len(memory.samples), super().ask(server, client_id)
        return Payload({**plain.tensors, **memory.sent}, {**plain.scalars, "mean_samples": mean})

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss:
        sent, ce = parameters_of(model, ask.tensors), cross_entropy(model)
        drift = parameters_of(model, client.state) if client.state else {}
        linear = {name: drift[name] - w if drift else -w for name, w in sent.items()}
        weight = self.method.options.alpha * float(ask.scalars["mean_samples"]) / max(1, len(client.shard))
        return lambda images, labels: {
            **ce(images, labels),
            "dyn": Weighted(dynamic_regulariser(model, linear), weight),
        }

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors:
        """Return the new h_k: h_k + theta_k - w."""
        drift = {name: p.detach().cpu() - ask.tensors[name].cpu() for name, p in model.named_parameters()}
        return {name: d + client.state[name] if client.state else d for name, d in drift.items()}

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Average theta_k, and add the drift of the clients that replied to the mean of h_k over all clients."""
        names = [name for name, _ in self.method.build_model(Key(0)).named_parameters()]
        models = {client: reply.tensors for client, reply in replies.items()}
        plain = weighted_average(models, dict.fromkeys(models, 1.0))
        model = {**weighted_average(models, samples_of(replies)), **{name: plain[name] for name in names}}
        memory: FedDynMemory = server.memory
        sent = {**server.model, **memory.sent}
        share = len(replies) / max(server.clients, len(replies))
        grown = {name: memory.drift.get(name, 0) + share * (plain[name] - sent[name]) for name in names}
        to_send = {name: plain[name] + grown[name] for name in names}
        return replace(server, model=model, memory=replace(memory, drift=grown, sent=to_send))


class FedDyn(AveragingMethod):
    """FedAvg with a dynamic regulariser, and a drift that server and clients keep."""

    Options = FedDynOptions
    Memory = FedDynMemory
    Fit = Fit
    title = "FedDyn"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Count(), self.Fit(self))
