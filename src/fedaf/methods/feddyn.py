"""FedDyn: Acar et al., "Federated Learning Based on Dynamic Regularization" (ICLR 2021).

Each client keeps h_k, the sum of its past drifts, and minimises

    L(theta) + alpha_k <theta, h_k - w> + alpha_k / 2 ||theta||^2,      alpha_k = alpha * mean(n) / n_k,

then h_k <- h_k + theta_k - w. The server sends w = mean theta_k over those who answered + mean h_k over all clients;
accuracy is that of mean theta_k. Running statistics are averaged as in FedAvg and kept out of h.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.methods import averaging
from fedaf.methods.averaging import (
    MOST_SAMPLES,
    AveragingMethod,
    AveragingOptions,
    parameters_of,
    samples_of,
    weighted_average,
)
from fedaf.protocol import Client, Engine, Key, Number, Outcome, Payload, Phase, Schema, ServerState, Tensors
from fedaf.training.fit import Loss, cross_entropy

_SENT, _DRIFT, _SIZES = "sent", "drift", "samples"  # records of server memory: w, mean h_k, n_k


class FedDynOptions(AveragingOptions):
    alpha: float = Option(0.01, gt=0, description="weight of the dynamic regulariser")


def dynamic_regulariser(model: nn.Module, linear: Tensors) -> Tensor:
    """<theta, h_k - w> + ||theta||^2 / 2 over the trainable parameters; ``linear`` is h_k - w."""
    return torch.stack([(p * linear[name] + p.square() / 2).sum() for name, p in model.named_parameters()]).sum()


class Count(Phase):
    """Up: n_k, of which the server tells the mean, so that alpha_k is right from the first round on."""

    name = "count"

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload()

    def schema(self, ask: Payload) -> Schema:
        return Schema(scalars={"samples": Number(int, 0, MOST_SAMPLES)})

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return Outcome(Payload(scalars={"samples": len(client.shard)}))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        heard = {name: torch.tensor(float(reply.scalars["samples"])) for name, reply in replies.items()}
        sizes = {**server.memory.get(_SIZES, {}), **heard}
        return replace(server, memory={**server.memory, _SIZES: sizes})


class Fit(averaging.Fit):
    """Down: w, and the mean of n_k over the clients heard of. Up: theta_k."""

    terms = ("ce", "dyn")
    signed = ("dyn",)
    clip = 10.0

    def ask(self, server: ServerState, client_id: str) -> Payload:
        sizes = server.memory[_SIZES].values()
        mean = float(sum(float(n) for n in sizes)) / len(sizes)
        return Payload({**server.model, **server.memory.get(_SENT, {})}, {"mean_samples": mean})

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss:
        sent, ce = parameters_of(model, ask.tensors), cross_entropy(model)
        drift = parameters_of(model, client.state) if client.state else {}
        linear = {name: drift[name] - w if drift else -w for name, w in sent.items()}
        weight = self.method.options.alpha * float(ask.scalars["mean_samples"]) / max(1, len(client.shard))
        return lambda images, labels: {**ce(images, labels), "dyn": weight * dynamic_regulariser(model, linear)}

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors:
        """h_k + theta_k - w."""
        drift = {name: p.detach().cpu() - ask.tensors[name].cpu() for name, p in model.named_parameters()}
        return {name: d + client.state[name] if client.state else d for name, d in drift.items()}

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """theta = mean theta_k; mean h_k over all clients grows by the drift of those who answered."""
        names = [name for name, _ in self.method.build_model(Key(0)).named_parameters()]
        models = {client: reply.tensors for client, reply in replies.items()}
        plain = weighted_average(models, dict.fromkeys(models, 1.0))
        model = {**weighted_average(models, samples_of(replies)), **{name: plain[name] for name in names}}
        sent, drift = {**server.model, **server.memory.get(_SENT, {})}, server.memory.get(_DRIFT, {})
        share = len(replies) / max(server.clients, len(replies))
        grown = {name: drift.get(name, 0) + share * (plain[name] - sent[name]) for name in names}
        to_send = {name: plain[name] + grown[name] for name in names}
        return replace(server, model=model, memory={**server.memory, _DRIFT: grown, _SENT: to_send})


class FedDyn(AveragingMethod):
    Options = FedDynOptions
    Fit = Fit

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Count(), self.Fit(self))
