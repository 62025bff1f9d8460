"""The common part of all methods that average models: local training, the messages, and the average.

A method overrides what differs: a term of the loss, what a client keeps or sends besides, a step on the server.
docs/tutorials/write-a-method.md lists the methods of ``Fit`` to override.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field as Option
from pydantic import model_validator
from torch import Tensor, nn

from fedaf.common.batches import batch_count
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
    weight_decay: float = Option(0.0, ge=0, description="weight decay of local training (L2)")
    lr_schedule: Literal["constant", "cosine", "step"] = Option(
        "constant", description="how lr changes over the rounds of the run"
    )
    lr_min: float = Option(0.0, ge=0, description="learning rate that the cosine schedule falls to")
    lr_decay: float = Option(0.1, gt=0, le=1, description="factor of the step schedule")
    lr_step: int = Option(10, ge=1, description="rounds between two steps of the step schedule")

    @model_validator(mode="after")
    def _cosine_falls(self) -> "AveragingOptions":
        if self.lr_schedule == "cosine" and self.lr_min > self.lr:
            raise ValueError(f"lr_min is {self.lr_min:g}, but it must be at most lr, which is {self.lr:g}")
        return self

    @property
    def needs_rounds(self) -> bool:
        return self.lr_schedule == "cosine"


def scheduled_lr(options: AveragingOptions, round: int, rounds: int) -> float:
    """Return the learning rate of a round.

    cosine: lr_min + (lr - lr_min) (1 + cos(pi (t - 1) / T)) / 2; step: lr lr_decay^floor((t - 1) / lr_step).

    Args:
        options: The learning rate and its schedule.
        round: t, from 1.
        rounds: T, the number of rounds of the run.
    """
    done = round - 1
    if options.lr_schedule == "cosine":
        share = done / max(rounds, round)
        return options.lr_min + (options.lr - options.lr_min) * (1 + math.cos(math.pi * share)) / 2
    if options.lr_schedule == "step":
        return options.lr * options.lr_decay ** (done // options.lr_step)
    return options.lr


def step_sum(steps: int, momentum: float) -> float:
    """Return ||a||_1, where -lr sum_t a_t g_t is the update of SGD after ``steps`` steps with gradients g_t.

    With momentum m, which starts at zero, a_t = (1 - m^(steps - t)) / (1 - m) for t = 0, ..., steps - 1, as FedNova's
    paper has it. Without momentum it is the number of steps.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


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
        """Return the global model; with a schedule also ``lr``, this round's learning rate."""
        return Payload(server.model, self._scheduled(server))

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

    def upload(self, weights: Tensors, ask: Payload, client: Client) -> Tensors:
        """Return the weights that a client sends; the trained ones. Override it to clip, round or compress them."""
        return weights

    def extra(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Payload:
        """Return what a client sends besides its model, from the trained model; ``extra_schema`` says what is valid."""
        return Payload()

    def extra_schema(self, ask: Payload) -> Schema:
        """Return what ``extra`` must contain."""
        return Schema()

    def lr(self, ask: Payload) -> float:
        """Return the learning rate of this round's local training."""
        options = self.method.options
        return float(options.lr if options.lr_schedule == "constant" else ask.scalars["lr"])

    def _scheduled(self, server: ServerState) -> dict[str, float]:
        """Return this round's ``lr`` for messages and the log; nothing if it is the same in every round."""
        options = self.method.options
        constant = options.lr_schedule == "constant"
        return {} if constant else {"lr": scheduled_lr(options, server.round, server.rounds)}

    def steps(self, samples: int) -> int:
        """Return the number of steps of local training on this number of samples."""
        options = self.method.options
        return int(options.local_epochs) * batch_count(samples, options.batch_size)

    def schema(self, ask: Payload) -> Schema:
        losses = {f"loss_{name}": Number(float, -math.inf if name in self.signed else 0) for name in self.loss_names}
        extra = self.extra_schema(ask)
        scalars = {"samples": Number(int, 0, MOST_SAMPLES), **losses, **extra.scalars}
        return replace(extra, fields={**like(self.weights(ask)), **extra.fields}, scalars=scalars)

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
            lr=self.lr(ask),
            momentum=options.momentum,
            weight_decay=options.weight_decay,
            key=client.key,
            engine=engine,
            loss=self.loss(model.to(engine.device), ask, client, engine),
            clip=self.clip,
        )
        trained, extra = model.state_dict(), self.extra(model, ask, client, engine)
        tensors = self.upload({name: trained[name] for name in self.weights(ask)}, ask, client)
        scalars = {"samples": len(client.shard), **{f"loss_{name}": losses.get(name, 0.0) for name in self.loss_names}}
        reply = Payload({**tensors, **extra.tensors}, {**scalars, **extra.scalars})
        return Outcome(reply, state=self.keep(model, ask, client))

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Combine the models, and log the mean of each loss term, weighted by samples."""
        samples = samples_of(replies)
        losses = {
            loss: sum(float(r.scalars[f"loss_{loss}"]) * samples[k] for k, r in replies.items()) / sum(samples.values())
            for loss in self.loss_names
        }
        return self.combine(server, replies).with_log(losses=losses, **self._scheduled(server))

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

    @cached_property
    def trainable(self) -> tuple[str, ...]:
        """Names of the model's trainable parameters: all names of a parameter that several layers share."""
        named = self.build_model(Key(0)).named_parameters(remove_duplicate=False)
        return tuple(name for name, parameter in named if parameter.requires_grad)

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


def updated(model: Tensors, update: Tensors) -> dict[str, Tensor]:
    """Return the parameters in ``update`` after adding it to ``model``; float64 sums are rounded once, at the end."""
    return {name: (model[name].double() + change).to(model[name].dtype) for name, change in update.items()}


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
