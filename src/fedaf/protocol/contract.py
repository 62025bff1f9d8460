"""The contract between a method, its clients, its server, and whatever carries the messages.

A method is a tuple of phases and a last step on the server. In each phase the server asks, every client works on
its own data and replies, and the server folds the replies into its state. All state is explicit, all of it is
tensors, and nothing here knows which engine computes or which transport carries.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from fedaf.common.options import Options
from fedaf.errors import Refused
from fedaf.protocol.keys import Key
from fedaf.protocol.payload import Payload, Tensors
from fedaf.protocol.schema import Schema


@dataclass(frozen=True)
class Task:
    """What is to be learned. The normalisation constants come from the catalog or the user, never from clients'
    data; ``augment`` names the variations of training images, one choice for every method of a comparison."""

    dataset: str
    channels: int
    height: int
    width: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: tuple[str, ...] = ()

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return (self.channels, self.height, self.width)


@dataclass(frozen=True)
class Shard:
    """One client's private data: images uint8 [N, C, H, W], labels int64 [N]. ``test`` are data of the same kind that
    the client does not train on, where it has any."""

    images: Tensor
    labels: Tensor
    num_classes: int
    test: "Shard | None" = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def counts(self) -> list[int]:
        """How many samples of each class the client holds."""
        return torch.bincount(self.labels, minlength=self.num_classes).tolist()

    def rows_of(self, label: int) -> Tensor:
        return (self.labels == label).nonzero().squeeze(1)


@dataclass(frozen=True)
class Client:
    """One client in one phase. ``state`` is what it kept, committed before this round; ``scratch`` is what earlier
    phases of this round left."""

    id: str
    shard: Shard
    key: Key
    state: Tensors = field(default_factory=dict)
    scratch: Tensors = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A client's answer. ``state`` replaces its state, but only once the server has accepted the round; ``scratch``
    is for the later phases of this round. ``None`` leaves either as it was. ``images`` says how many condensed images
    the reply holds, which the client keeps count of."""

    reply: Payload
    state: Tensors | None = None
    scratch: Tensors | None = None
    images: int = 0


@dataclass(frozen=True)
class ServerState:
    """All that the server knows. ``memory`` is the method's own, kept between rounds and in checkpoints; ``scratch``
    and ``log`` are of the current round only, and so is ``clients``, how many there are in all."""

    key: Key
    model: Tensors
    round: int = 0
    memory: Mapping[str, Tensors] = field(default_factory=dict)
    scratch: Tensors = field(default_factory=dict)
    log: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 0

    def next_round(self, clients: int) -> "ServerState":
        return replace(self, round=self.round + 1, scratch={}, log={}, clients=clients)

    def with_log(self, **entries: Any) -> "ServerState":
        return replace(self, log={**self.log, **entries})


class Engine(Protocol):
    """Where and how a phase computes."""

    @property
    def device(self) -> torch.device: ...

    def chunks(self, count: int, item_bytes: int) -> Iterator[slice]:
        """Cut ``count`` items of ``item_bytes`` each into slices that fit the memory budget."""

    def tick(self, done: int, total: int) -> None:
        """Tell how far the work is. Called between steps; raises ``DeadlineExceeded`` when time is up."""

    def autocast(self) -> AbstractContextManager[None]:
        """Inside, networks compute in the precision that the user chose."""

    def in_fp32(self) -> Self:
        """This engine in float32, for work that cannot bear less."""

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """The same step, to be called many times; an engine may record what it does on the device and replay that. So
        a step reads and writes tensors that stay where they are, and nothing in it depends on their values."""


class Phase(ABC):
    """One exchange between the server and its clients. Only ``work_one`` says what a client does."""

    name: ClassVar[str]

    @abstractmethod
    def ask(self, server: ServerState, client_id: str) -> Payload:
        """What the server sends to this client."""

    @abstractmethod
    def schema(self, ask: Payload) -> Schema:
        """What a reply to ``ask`` may contain."""

    @abstractmethod
    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        """What one client does."""

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        """The same for a cohort on one device, in order. Override it where clients can share one computation; the
        outcomes must be those of ``work_one``."""
        for ask, client in zip(asks, clients, strict=True):
            yield self.work_one(ask, client, engine)

    @abstractmethod
    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """What the server makes of the replies it accepted."""


@dataclass(frozen=True)
class Exhibit:
    """Images a client shared, for people to look at: uint8 [classes, images, C, H, W]."""

    classes: list[int]
    images: Tensor


@dataclass(frozen=True)
class Workload:
    """Images through the model in one round, to estimate its time: without and with a backward pass."""

    forward: float
    backward: float


@dataclass(frozen=True)
class Disclosure:
    """What one round takes out of a client, in the terms its policy is written in. ``fewest_samples`` stand behind
    whatever is sent (0: nothing is sent); ``images`` are condensed images by class, and how they come about."""

    fewest_samples: int
    images: Mapping[int, int] = field(default_factory=dict)
    local_steps: int = 0
    initialisation: str = ""


@dataclass(frozen=True)
class Architecture:
    """The network to train: ``build`` makes one for the task, initialised from a key. Its features are the input of
    the layer called ``classifier``; ``None`` is the last Linear in execution order."""

    build: Callable[[Key], nn.Module]
    classifier: str | None = None


class Method(ABC):
    """A federated learning method: its options, its phases, and the server's own work after the last of them."""

    Options: ClassVar[type[Options]] = Options
    #: Raise it with every change that changes the numbers of a run; runs of different versions are never averaged.
    version: ClassVar[int] = 1
    #: The name under which presets keep values for this class and all that derive from it; unset: none of its own.
    family: ClassVar[str] = ""

    def __init__(self, options: Any, task: Task, architecture: Architecture) -> None:
        self.options = options
        self.task = task
        self.architecture = architecture

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The exchanges of one round, in order."""

    @property
    def evaluation(self) -> Phase | None:
        """An exchange after the server's own work, for the report only, for methods with personal models: clients
        answer from the state that this round left them, and keep it as it is."""
        return None

    def phase(self, name: str) -> Phase:
        """The phase a request names; ``Refused`` where the method has none of that name."""
        known = [*self.phases, *([self.evaluation] if self.evaluation else [])]
        for phase in known:
            if phase.name == name:
                return phase
        raise Refused(f"there is no phase {name[:80]!r}; this method has {', '.join(p.name for p in known)}")

    def build_model(self, key: Key) -> nn.Module:
        """The model to train, initialised from ``key``; override it to add a head."""
        return self.architecture.build(key)

    @property
    def classifier(self) -> str | None:
        """The layer of that model whose input are its features; ``None`` is the last Linear in execution order."""
        return self.architecture.classifier

    def initial(self, key: Key) -> ServerState:
        return ServerState(key=key, model=dict(self.build_model(key.derive("model")).state_dict()))

    def check(self, counts: Mapping[str, Sequence[int]]) -> None:  # noqa: B027 - most methods take any split
        """Raise ``UserError`` where these options cannot work on this split (class counts by client)."""

    def finish(self, server: ServerState, engine: Engine) -> ServerState:
        """The server's own work of the round, after the last fold."""
        return server

    def exhibits(self, server: ServerState) -> Mapping[str, Exhibit]:
        """What clients shared that can be looked at, by client."""
        return {}

    def discloses(self, counts: Sequence[int]) -> Disclosure | None:
        """What a round takes out of a client with these samples by class; ``None`` where the method does not tell. Then
        only clients whose policy names the method take part in it."""
        return None

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload | None:
        """The work of one round, where the method can tell."""
        return None
