"""FedGen: Zhu et al., "Data-Free Knowledge Distillation for Heterogeneous Federated Learning" (ICML 2021).

The server trains a generator of features per class on the clients' classifiers. Clients train on generated features in
addition to their own data. Models are averaged as in FedAvg.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from pydantic import Field as Option
from torch import Tensor, nn
from torch.func import functional_call

from fedaf.methods import averaging
from fedaf.methods.averaging import MOST_SAMPLES, AveragingMethod, AveragingOptions, linear_classifier
from fedaf.models.weights import initialise
from fedaf.protocol import Client, Disclosure, Engine, Field, Key, Payload, Schema, ServerState, Tensors
from fedaf.protocol.payload import prefixed, select, to_cpu
from fedaf.protocol.records import formerly
from fedaf.training.fit import Loss, Weighted

_MODEL, _GENERATOR, _LABELS, _COUNTS = "model/", "generator/", "labels", "label_counts"  # names in messages


class FedGenOptions(AveragingOptions):
    """Options of FedGen."""

    noise_dim: int = Option(64, ge=1, description="size of the generator's noise input")
    hidden_dim: int = Option(512, ge=1, description="hidden width of the generator")
    generator_steps: int = Option(50, ge=0, description="Adam steps of the generator per round")
    generator_batch: int = Option(32, ge=2, description="generated samples per step, on the server and on clients")
    generator_lr: float = Option(3e-4, gt=0, description="learning rate of the generator")
    generator_decay: float = Option(1e-2, ge=0, description="weight decay of the generator")
    diversity: float = Option(1.0, ge=0, description="weight of the generator's diversity loss")
    weight: float = Option(10.0, ge=0, description="weight of both generated loss terms in local training")
    weight_decay_rate: float = Option(0.98, gt=0, le=1, description="factor by which this weight shrinks in each round")


@dataclass(frozen=True)
class FedGenMemory:
    """What the server keeps: the generator's tensors, and the labels that any client ever had, int64."""

    generator: Tensors
    labels: Tensor = field(metadata=formerly("labels/labels"))


@dataclass(frozen=True)
class Teacher:
    """One client's classifier, and its number of samples per class."""

    head: Tensors
    counts: Tensor


class Generator(nn.Module):
    """Generator of features of a class: from [noise, one-hot label] to the input of the model's classifier."""

    def __init__(self, noise: int, classes: int, hidden: int, features: int) -> None:
        super().__init__()
        self.classes = classes
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, features)
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        features: Tensor = self.layers(torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], 1))
        return features


def label_weights(counts: Sequence[Tensor]) -> Tensor:
    """Return w_ky = count_k(y) / sum_k count_k(y), [clients, classes]; zero for labels that no client has."""
    table = torch.stack([c.double() for c in counts])
    return (table / table.sum(0).clamp(min=1)).float()


def teacher_loss(logits: Sequence[Tensor], labels: Tensor, weights: Tensor) -> Tensor:
    """Return the mean over the batch of sum_k w_ky CE(head_k(G), y), with the weights of each sample's label."""
    losses = [F.cross_entropy(of_client, labels, reduction="none") for of_client in logits]
    return (torch.stack(losses) * weights[:, labels]).sum(0).mean()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """Return exp(mean over pairs of -||eps_i - eps_j||^2 |z_i - z_j|_1): small if different noise gives different
    features.

    Both distances are means over their dimensions, as in the authors' code; sums would make the gradient vanish.
    """
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(-1)
    gap = (features.unsqueeze(0) - features.unsqueeze(1)).abs().mean(-1)
    return torch.exp(-(apart * gap).mean())


class Fit(averaging.Fit):
    """Down: the global model, the generator, and the labels it knows. Up: the trained model, and counts by class."""

    loss_names = ("ce", "generated", "distilled")
    method: "FedGen"

    def ask(self, server: ServerState, client_id: str) -> Payload:
        memory: FedGenMemory = server.memory
        plain, generator = super().ask(server, client_id), prefixed(_GENERATOR, memory.generator)
        tensors = {**prefixed(_MODEL, plain.tensors), **generator, _LABELS: memory.labels}
        return Payload(tensors, {**plain.scalars, "round": server.round})

    def weights(self, ask: Payload) -> Tensors:
        return select(ask.tensors, _MODEL)

    def extra(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Payload:
        return Payload({_COUNTS: torch.tensor(client.shard.counts, dtype=torch.int64)})

    def extra_schema(self, ask: Payload) -> Schema:
        return Schema({_COUNTS: Field(torch.int64, (self.method.task.num_classes,), low=0, high=MOST_SAMPLES)})

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss | None:
        known = ask.tensors[_LABELS].to(engine.device)
        if not len(known):
            return None
        method, options = self.method, self.method.options
        head = model.get_submodule(method.head[0])
        generator = method.generator(Key(0))
        generator.load_state_dict(select(ask.tensors, _GENERATOR))
        generator.to(engine.device).eval().requires_grad_(False)
        weight = options.weight * options.weight_decay_rate ** int(ask.scalars["round"])

        def generate(labels: Tensor) -> Tensor:
            noise = torch.rand(len(labels), options.noise_dim, device=engine.device)
            features: Tensor = generator(noise, labels)
            return features

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor | Weighted]:
            logits = model(images)
            picks = torch.randint(len(known), (options.generator_batch,), device=engine.device)
            generated = F.cross_entropy(head(generate(known[picks])), known[picks])
            with torch.no_grad():
                teacher = torch.softmax(head(generate(labels)), 1)
            distilled = F.kl_div(torch.log_softmax(logits, 1), teacher, reduction="batchmean")
            return {
                "ce": F.cross_entropy(logits, labels),
                "generated": Weighted(generated, weight * options.generator_batch / options.batch_size),
                "distilled": Weighted(distilled, weight),
            }

        return loss

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Average the models, and keep the clients' classifiers to train the generator."""
        head = f"{self.method.head[0]}."
        teachers = [Teacher(select(r.tensors, head), r.tensors[_COUNTS]) for r in replies.values()]
        return replace(super().combine(server, replies), scratch=teachers)


class FedGen(AveragingMethod):
    """FedAvg with a generator of features that the server trains and clients learn from."""

    Options = FedGenOptions
    Memory = FedGenMemory
    Fit = Fit
    title = "FedGen"

    def initial(self, key: Key) -> ServerState:
        model = dict(self.build_model(key.derive("model")).state_dict())
        generator = dict(self.generator(key.derive("generator")).state_dict())
        return ServerState(key, model, memory=FedGenMemory(generator, labels=torch.empty(0, dtype=torch.int64)))

    def generator(self, key: Key) -> Generator:
        """Return a new generator, initialised from ``key``."""
        options, classes = self.options, self.task.num_classes
        made = Generator(options.noise_dim, classes, options.hidden_dim, self.head[1])
        initialise(made, key)
        return made

    def discloses(self, counts: Sequence[int]) -> Disclosure:
        """Counts by class are sent, so the smallest class decides."""
        return Disclosure(fewest_samples=min((n for n in counts if n), default=0))

    @cached_property
    def head(self) -> tuple[str, int]:
        """The name of the model's classifier, and the number of its inputs."""
        name, last = linear_classifier(self.build_model(Key(0)), self.task, self.classifier, "fedgen")
        return name, last.in_features

    def finish(self, server: ServerState, engine: Engine) -> ServerState:
        """Train the generator on the classifiers that clients sent."""
        options, device, memory = self.options, engine.device, server.memory
        teachers: list[Teacher] = server.scratch
        heads = [{name: t.to(device) for name, t in teacher.head.items()} for teacher in teachers]
        weights = label_weights([teacher.counts.to(device) for teacher in teachers])
        known = (weights.sum(0) > 0).nonzero().squeeze(1)
        if not len(known):
            return server
        head = self.build_model(server.key).get_submodule(self.head[0]).to(device).eval()
        generator = self.generator(server.key)
        generator.load_state_dict(memory.generator)
        generator.to(device).train()
        optimiser = torch.optim.Adam(
            generator.parameters(), lr=options.generator_lr, weight_decay=options.generator_decay
        )
        draws = server.key.derive("generator", server.round).torch(device)
        distance = diversity = torch.zeros(())
        for step in range(options.generator_steps):
            labels = known[torch.randint(len(known), (options.generator_batch,), generator=draws, device=device)]
            noise = torch.rand(len(labels), options.noise_dim, generator=draws, device=device)
            features = generator(noise, labels)
            logits = [functional_call(head, of_client, (features,)) for of_client in heads]
            distance, diversity = teacher_loss(logits, labels, weights), diversity_loss(noise, features)
            optimiser.zero_grad()
            (distance + options.diversity * diversity).backward()
            optimiser.step()
            engine.tick(step + 1, options.generator_steps)
        labels = torch.cat([memory.labels, known.cpu()]).unique()
        losses = {"teacher": float(distance.detach()), "diversity": float(diversity.detach())}
        server = replace(server, memory=FedGenMemory(to_cpu(generator.state_dict()), labels))
        return server.with_log(losses={**server.log["losses"], **losses})
