"""Averaging methods on images of 4 x 4: a client's work by hand, and whole rounds of a few clients in milliseconds."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedaf.client.state import ClientState
from fedaf.engine import EagerEngine
from fedaf.federation.observer import Observer
from fedaf.federation.rounds import RoundReport, RoundRules, play_round
from fedaf.methods.averaging import AveragingMethod, Fit
from fedaf.methods.registry import FEDERATED, METHODS
from fedaf.models.weights import initialise
from fedaf.protocol import Architecture, Client, Key, Method, Outcome, Payload, Shard, Task, Tensors
from fedaf.transports.local import LocalTransport
from support.zoo import build

CLASSES = 3
TASK = Task("tiny", 1, 4, 4, CLASSES, mean=(0.5,), std=(0.25,))
ENGINE = EagerEngine(torch.device("cpu"))
CONVNET = Architecture(partial(build, "convnet", TASK, depth=2, width=4, norm="batch"))
AVERAGING = tuple(name for name in FEDERATED if issubclass(METHODS.find(name), AveragingMethod))


def make(name: str, architecture: Architecture = CONVNET, **options: Any) -> AveragingMethod:
    """A method on tiny images; one epoch of one full batch without momentum unless said otherwise."""
    found = METHODS.find(name)
    method = found(found.Options(**{"local_epochs": 1, "momentum": 0.0, **options}), TASK, architecture)
    assert isinstance(method, AveragingMethod)
    return method


def of(network: type[nn.Module], **names: Any) -> Architecture:
    return Architecture(lambda key: initialise(network(), key), **names)


class EndsInAConvolution(nn.Module):
    """A network without any Linear; its classifier is called ``last``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, CLASSES, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x)).flatten(1)
        return out


def shard(count: int, labels: tuple[int, ...] = tuple(range(CLASSES)), seed: int = 0) -> Shard:
    """Random images, with these labels in turn; and other images to test on."""

    def some(seed: int) -> tuple[Tensor, Tensor]:
        images = torch.randint(0, 256, (count, *TASK.image_shape), dtype=torch.uint8, generator=Key(seed).torch())
        return images, torch.tensor(labels)[torch.arange(count) % len(labels)]

    return Shard(*some(seed), CLASSES, Shard(*some(seed + 1000), CLASSES))


def pixels(held: Shard) -> Tensor:
    """What the network sees of a shard."""
    return (held.images / 255 - TASK.mean[0]) / TASK.std[0]


def a_client(held: Shard, state: Tensors | None = None, name: str = "client-0") -> Client:
    return Client(name, held, Key(7).derive(name), state or {})


def fit_of(method: Method) -> Fit:
    fit = method.phases[-1]
    assert isinstance(fit, Fit)
    return fit


def worked(method: Method, ask: Payload, client: Client) -> Outcome:
    """What comes of a client's local training."""
    return fit_of(method).work_one(ask, client, ENGINE)


def parameters(method: Method, tensors: Tensors) -> dict[str, Tensor]:
    """The trainable ones among the tensors of a model."""
    return {name: tensors[name].clone() for name, _ in method.build_model(Key(0)).named_parameters()}


def gradients(loss: Tensor, model: nn.Module) -> dict[str, Tensor]:
    names = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(names.values()), allow_unused=True, retain_graph=True)
    return {n: torch.zeros_like(names[n]) if g is None else g for n, g in zip(names, found, strict=True)}


def assert_close(found: Tensors, expected: Tensors, atol: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-3, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


class Play:
    """A federation of these clients, played round by round."""

    def __init__(
        self, method: Method, shards: Mapping[str, Shard], rules: RoundRules | None = None, seed: int = 0
    ) -> None:
        self.method, self.shards, self.rules = method, shards, rules or RoundRules()
        self.transport = LocalTransport(shards, ENGINE)
        self.server = method.initial(Key(seed))
        self.accepted: dict[str, int] = {}

    def round(self) -> RoundReport:
        self.server, report = play_round(
            self.server,
            method=self.method,
            transport=self.transport,
            clients=list(self.shards),
            accepted=self.accepted,
            run="test",
            rules=self.rules,
            engine=ENGINE,
            observer=Observer(),
        )
        self.accepted |= dict.fromkeys(report.accepted, self.server.round)
        return report

    def kept(self, client: str) -> Tensors:
        """What a client has kept once its last round was accepted."""
        records = self.transport.checkpoint()
        state = ClientState.from_tensors(records[client]) if client in records else ClientState()
        return state.committed if state.pending is None else state.pending
