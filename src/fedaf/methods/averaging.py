"""The common part of all methods that average models: local training, the messages, and the average.

A method overrides what differs: a term of the loss, what a client keeps, a step on the server.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.common.options import Options
from fedaf.errors import UserError
from fedaf.models.backbone import find_classifier
from fedaf.models.footprint import activation_bytes
from fedaf.protocol import (
    Client,
    Disclosure,
    Engine,
    Key,
    Method,
    Outcome,
    Payload,
    Phase,
    ServerState,
    Task,
    Tensors,
    Workload,
)
from fedaf.protocol.schema import Number, Schema, like
from fedaf.training.fit import Loss, fit

MOST_SAMPLES = 1 << 40


class AveragingOptions(Options):
    """Options of all averaging methods."""

    local_epochs: int = Option(10, ge=1, description="epochs of local training per round")
    batch_size: int = Option(64, ge=2, description="batch size of local training")
    lr: float = Option(0.01, gt=0, description="learning rate of local training")
    momentum: float = Option(0.9, ge=0, lt=1, description="momentum of local training")


class Fit(Phase):
    """Train locally.

    Down: the global model. Up: the trained model, the number of samples, and the unweighted terms of the loss.
    """

    name = "fit"
    #: Names of the loss terms, and of those among them that may be negative.
    loss_names: ClassVar[tuple[str, ...]] = ("ce",)
    signed: ClassVar[tuple[str, ...]] = ()
    #: Norm to clip gradients to.
    clip: ClassVar[float | None] = None

    def __init__(self, method: "AveragingMethod") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model)

    def weights(self, ask: Payload) -> Tensors:
        """Return the tensors of a request that belong to the model; clients send the same ones back."""
        return ask.tensors

    def load(self, model: nn.Module, ask: Payload, client: Client) -> None:
        """Load the weights that local training starts from."""
        model.load_state_dict(self.weights(ask))

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss | None:
        """Return the loss of local training; ``None`` is cross-entropy. The model is already on the device."""
        return None

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors | None:
        """Return what a client keeps for its next participation, from the trained model."""
        return None

    def schema(self, ask: Payload) -> Schema:
        losses = {f"loss_{name}": Number(float, -math.inf if name in self.signed else 0) for name in self.loss_names}
        return Schema(like(self.weights(ask)), {"samples": Number(int, 0, MOST_SAMPLES), **losses})

    def client_bytes(self, clients: Sequence[Client]) -> int:
        method = self.method
        model = method.build_model(Key(0)).eval()
        one, two = (activation_bytes(model, torch.zeros(count, *method.task.image_shape)) for count in (1, 2))
        samples, batch = max(client.shard.images.nbytes for client in clients), int(method.options.batch_size)
        return one + (batch - 1) * (two - one) + samples  # what does not grow with the batch counts once

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
        tensors = {name: trained[name] for name in self.weights(ask)}
        scalars = {"samples": len(client.shard), **{f"loss_{name}": losses.get(name, 0.0) for name in self.loss_names}}
        return Outcome(Payload(tensors, scalars), state=self.keep(model, ask, client))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Combine the models, and log the mean of each loss term, weighted by samples."""
        samples = samples_of(replies)
        losses = {
            loss: sum(float(r.scalars[f"loss_{loss}"]) * samples[k] for k, r in replies.items()) / sum(samples.values())
            for loss in self.loss_names
        }
        return self.combine(server, replies).with_log(losses=losses)

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Average the models: w = sum_k (n_k / n) w_k, including running statistics."""
        models = {name: {n: reply.tensors[n] for n in server.model} for name, reply in replies.items()}
        return replace(server, model=weighted_average(models, samples_of(replies)))


class AveragingMethod(Method):
    """A method whose clients send models. Its options derive from ``AveragingOptions``."""

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
    """Return n_k by client; 1 for all if no client has any samples."""
    samples = {name: float(reply.scalars["samples"]) for name, reply in replies.items()}
    return samples if any(samples.values()) else dict.fromkeys(samples, 1.0)


def weighted_average(models: Mapping[str, Tensors], weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return sum_k (n_k / n) w_k for every tensor; integer tensors are rounded."""
    total = sum(weights.values())

    def average(name: str) -> Tensor:
        dtype = next(iter(models.values()))[name].dtype
        mean = torch.stack([models[k][name].double() * (weights[k] / total) for k in models]).sum(0)
        return (mean if dtype.is_floating_point else mean.round()).to(dtype)

    return {name: average(name) for name in next(iter(models.values()))}


def linear_classifier(model: nn.Module, task: Task, named: str | None, wanted_by: str) -> tuple[str, nn.Linear]:
    """Return the name of the model's classifier, and the classifier, which must be a Linear layer for ``wanted_by``."""
    with torch.no_grad():
        name = find_classifier(model.eval(), torch.zeros(1, *task.image_shape), named)
    found = model.get_submodule(name)
    if not isinstance(found, nn.Linear):
        problem = f"{wanted_by} needs a Linear classifier, but {name!r} is a {type(found).__name__}"
        raise UserError(f"{problem}; set model.classifier to a Linear layer.", code="FEDAF-METHOD-CLASSIFIER")
    return name, found


def parameters_of(model: nn.Module, tensors: Tensors) -> dict[str, Tensor]:
    """Return the trainable parameters among a model's tensors, on the device and in the memory layout of ``model``.

    Sums over another layout, such as a checkpoint's, would be rounded differently.
    """
    return {name: torch.empty_like(p).copy_(tensors[name]) for name, p in model.named_parameters()}
