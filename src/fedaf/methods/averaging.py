"""What all methods that average models have in common: local training, what is sent, and the average. A method states
what differs: a term of the loss, what a client keeps, a step of the server."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.protocol import (
    Client,
    Disclosure,
    Engine,
    Field,
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
from fedaf.training.fit import Loss, fit

MOST_SAMPLES = 1 << 40


class AveragingOptions(Options):
    local_epochs: int = Option(10, ge=1, description="epochs of local training a round")
    batch_size: int = Option(64, ge=2, description="batch size of local training")
    lr: float = Option(0.01, gt=0, description="learning rate of local training")
    momentum: float = Option(0.9, ge=0, lt=1, description="momentum of local training")


class Fit(Phase):
    """Down: the global model. Up: the model after local training, the number of samples, the terms of the loss."""

    name = "fit"
    #: The terms of the loss by their names in the log; those that may be negative are ``signed``.
    terms: ClassVar[tuple[str, ...]] = ("ce",)
    signed: ClassVar[tuple[str, ...]] = ()
    #: Gradients are clipped to this norm.
    clip: ClassVar[float | None] = None

    def __init__(self, method: "AveragingMethod") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model)

    def weights(self, ask: Payload) -> Tensors:
        """Of what was sent, the tensors of the model: those that a client sends back after training."""
        return ask.tensors

    def load(self, model: nn.Module, ask: Payload, client: Client) -> None:
        """Where local training starts."""
        model.load_state_dict(self.weights(ask))

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss | None:
        """What a client minimises; cross-entropy unless a method says otherwise. The model is on the device."""
        return None

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors | None:
        """What a client keeps for its next participation, from the model as trained."""
        return None

    def extra_fields(self) -> Mapping[str, Field]:
        """What a client sends beside the model."""
        return {}

    def extra(self, client: Client) -> Tensors:
        return {}

    def schema(self, ask: Payload) -> Schema:
        losses = {f"loss_{term}": Number(float, -math.inf if term in self.signed else 0) for term in self.terms}
        fields = {**like(self.weights(ask)), **self.extra_fields()}
        return Schema(fields, {"samples": Number(int, 0, MOST_SAMPLES), **losses})

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        method, options = self.method, self.method.options
        model = method.build_model(client.key)
        self.load(model, ask, client)
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
            loss=self.loss(model.to(engine.device), ask, client, engine),
            clip=self.clip,
        )
        trained = model.state_dict()
        tensors = {**{name: trained[name] for name in self.weights(ask)}, **self.extra(client)}
        scalars = {"samples": len(client.shard), **{f"loss_{term}": losses.get(term, 0.0) for term in self.terms}}
        return Outcome(Payload(tensors, scalars), state=self.keep(model, ask, client))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        return self.combine(server, replies).with_log(losses=self.mean_losses(replies))

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """w = sum_k (n_k / n) w_k, running statistics included."""
        models = {name: {n: reply.tensors[n] for n in server.model} for name, reply in replies.items()}
        return replace(server, model=weighted_average(models, samples_of(replies)))

    def mean_losses(self, replies: Mapping[str, Payload]) -> dict[str, float]:
        samples = samples_of(replies)
        total = sum(samples.values()) or 1.0
        return {
            term: sum(float(r.scalars[f"loss_{term}"]) * samples[name] for name, r in replies.items()) / total
            for term in self.terms
        }


class AveragingMethod(Method):
    """A method whose clients send models. ``options`` are ``AveragingOptions`` or derived from them."""

    Options = AveragingOptions
    family = "averaging"
    Fit: ClassVar[type[Fit]] = Fit

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (self.Fit(self),)

    def discloses(self, counts: Sequence[int]) -> Disclosure:
        return Disclosure(fewest_samples=sum(counts))

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        samples = sum(sum(of_client) for of_client in counts.values())
        return Workload(forward=0, backward=self.options.local_epochs * samples)


def samples_of(replies: Mapping[str, Payload]) -> dict[str, float]:
    """n_k by client; one each where nobody has any."""
    samples = {name: float(reply.scalars["samples"]) for name, reply in replies.items()}
    return samples if any(samples.values()) else dict.fromkeys(samples, 1.0)


def weighted_average(models: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """sum_k (n_k / n) w_k by name; whole numbers are rounded to whole numbers."""
    total = sum(weights.values())

    def average(name: str) -> Tensor:
        dtype = next(iter(models.values()))[name].dtype
        mean = torch.stack([models[k][name].double() * (weights[k] / total) for k in models]).sum(0)
        return (mean if dtype.is_floating_point else mean.round()).to(dtype)

    return {name: average(name) for name in next(iter(models.values()))}


def parameters_of(model: nn.Module, tensors: Tensors) -> dict[str, Tensor]:
    """Of the tensors of a model, its trainable parameters, where and how those of ``model`` lie in memory: sums over
    another layout, such as a checkpoint's, would be rounded otherwise."""
    return {name: torch.empty_like(p).copy_(tensors[name]) for name, p in model.named_parameters()}
