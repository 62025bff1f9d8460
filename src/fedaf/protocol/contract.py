"""The contract between a method, its clients and its server.

A method is a tuple of phases and a last step on the server (``finish``). In each phase the server asks, every client
works on its own data and replies, and the server aggregates the replies into its state. All state is explicit. A method
does not know its transport or its engine.

Example:
    A complete method: each client takes one gradient step, and the server averages the models. Saved as
    ``fedsgd.py``, it runs with ``fedaf run --method fedsgd:FedSGD``::

        from dataclasses import replace

        import torch
        from torch.nn import functional as F

        from fedaf.data.pixels import normalise
        from fedaf.protocol import Method, Options, Outcome, Payload, Phase, Schema, like


        class Step(Phase):
            name = "step"

            def __init__(self, method):
                self.method = method

            def ask(self, server, client_id):
                return Payload(server.model)

            def schema(self, ask):
                return Schema(like(ask.tensors))

            def work_one(self, ask, client, engine):
                model = self.method.build_model(client.key)
                model.load_state_dict(ask.tensors)
                images = normalise(client.shard.images, self.method.task.mean, self.method.task.std)
                F.cross_entropy(model(images), client.shard.labels).backward()
                stepped = {name: p - self.method.options.lr * p.grad for name, p in model.named_parameters()}
                return Outcome(Payload({**model.state_dict(), **stepped}))

            def aggregate(self, server, replies):
                models = [reply.tensors for reply in replies.values()]
                mean = {
                    name: torch.stack([model[name].double() for model in models]).mean(0).to(tensor.dtype)
                    for name, tensor in server.model.items()
                }
                return replace(server, model=mean)


        class FedSGDOptions(Options):
            lr: float = 0.5


        class FedSGD(Method):
            Options = FedSGDOptions

            @property
            def phases(self):
                return (Step(self),)
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import nn

from fedaf.common.options import Options
from fedaf.errors import Refused
from fedaf.protocol.keys import Key
from fedaf.protocol.payload import Payload, Tensors
from fedaf.protocol.reports import Disclosure, Exhibit, Workload
from fedaf.protocol.schema import Schema
from fedaf.protocol.task import Shard, Task
from fedaf.protocol.vault import Vault

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Client:
    """One client in one phase.

    Args:
        id: Name of the client.
        shard: Its data.
        key: Its random key for this round and phase.
        state: The state that it kept after the last accepted round.
        scratch: What earlier phases of this round stored.
        sent: Condensed images sent so far by class, over all runs.
        allowance: Condensed images that the policy permits in this round by class, none of a class that is missing;
            ``None`` means no limit.
        vault: Its private releases, if the run has differential privacy.
    """

    id: str
    shard: Shard
    key: Key
    state: Tensors = field(default_factory=dict)
    scratch: Tensors = field(default_factory=dict)
    sent: Mapping[int, int] = field(default_factory=dict)
    allowance: Mapping[int, int] | None = None
    vault: Vault | None = None

    def may_send(self, label: int, images: int) -> bool:
        """Return whether the policy permits this number of images of a class."""
        return self.allowance is None or images <= self.allowance.get(label, 0)


@dataclass(frozen=True)
class Outcome:
    """The result of a client's work in one phase.

    Args:
        reply: What is sent to the server.
        state: Replaces the client's state after the server accepts the round; ``None`` keeps the old one.
        scratch: For the later phases of this round; ``None`` keeps what is there.
        images: Number of condensed images in the reply by class, which the client counts over all runs.
    """

    reply: Payload
    state: Tensors | None = None
    scratch: Tensors | None = None
    images: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerState:
    """The server's state.

    Args:
        key: Source of the server's random draws.
        model: The global model's parameters and buffers.
        round: The current round; 0 before the first.
        memory: What the method keeps between rounds and in checkpoints: an instance of ``Method.Memory``.
        scratch: What the method passes from one phase to the next within a round; any object.
        log: Entries for this round's line in ``metrics.jsonl``.
        clients: The number of clients in the federation, in this round.
        rounds: The number of rounds that the run is to have, for schedules.
    """

    key: Key
    model: Tensors
    round: int = 0
    memory: Any = None
    scratch: Any = None
    log: Mapping[str, Any] = field(default_factory=dict)
    clients: int = 0
    rounds: int = 0

    def next_round(self, clients: int) -> "ServerState":
        """Return the state at the start of the next round: scratch and log are empty again."""
        return replace(self, round=self.round + 1, scratch=None, log={}, clients=clients)

    def with_log(self, **entries: Any) -> "ServerState":
        """Return a copy with more log entries."""
        return replace(self, log={**self.log, **entries})


class Engine(Protocol):
    """Computes the phases, on some device and with some precision."""

    @property
    def device(self) -> torch.device:
        """The device that tensors must be on."""

    def chunks(self, count: int, item_bytes: int) -> Iterator[slice]:
        """Split ``count`` items of ``item_bytes`` each into slices that fit the memory budget."""

    def tick(self, done: int, total: int) -> None:
        """Report progress between steps.

        Raises:
            DeadlineExceeded: The time for this phase is over.
        """

    def autocast(self) -> AbstractContextManager[None]:
        """Return a context in which networks compute in the user's precision."""

    def in_fp32(self) -> Self:
        """Return this engine in float32, for work that needs full precision."""

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """Return the same step, perhaps captured as a CUDA graph, to be called many times.

        A step must read and write tensors in place, and its control flow must not depend on their values.
        """

    def each(
        self, work: Callable[[Item, Self], Result], items: Sequence[Item], item_bytes: Callable[[], int]
    ) -> Iterator[Result]:
        """Yield ``work(item, engine)`` for each item, in order, perhaps several at the same time in threads.

        Args:
            work: What to do.
            items: What to do it with.
            item_bytes: Returns the memory that one item needs on the device; the engine works on as many as fit.
        """

    def concurrently(self) -> AbstractContextManager[None]:
        """Return a context in which other items of ``each`` may be computed too.

        What runs in it draws nothing from PyTorch's global generators, except inside of a block of ``Draws``.
        """


class Phase(ABC):
    """One exchange between the server and its clients. ``work_one`` defines what a client does."""

    name: ClassVar[str]

    @abstractmethod
    def ask(self, server: ServerState, client_id: str) -> Payload:
        """Return what the server sends to a client."""

    @abstractmethod
    def schema(self, ask: Payload) -> Schema:
        """Return what a reply to ``ask`` must contain. Replies that differ are refused."""

    @abstractmethod
    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        """Do the work of one client.

        Args:
            ask: What the server sent.
            client: The client's data, random key and state.
            engine: Computes.

        Returns:
            The reply, and the state to keep.

        Raises:
            Refused: This client cannot take part; the others continue.
        """

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        """Do the work of several clients on one device; outcomes are in the order of the clients.

        The engine decides how many clients it works for at the same time. Override this method if clients can share one
        computation. The outcomes must equal those of ``work_one``. If it raises, the clients are retried one by one.
        """

        def work_one(asked: tuple[Payload, Client], engine: Engine) -> Outcome:
            return self.work_one(*asked, engine)

        return engine.each(work_one, list(zip(asks, clients, strict=True)), partial(self.client_bytes, clients))

    def client_bytes(self, clients: Sequence[Client]) -> int:
        """Return the device memory that the work of one of these clients needs at most, or 0 if it is little."""
        return 0

    @abstractmethod
    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Return the server's state after the accepted replies, by client."""


@dataclass(frozen=True)
class Architecture:
    """The network to train.

    Args:
        build: Builds the network for the task, with weights initialised from a key.
        classifier: Name of the layer whose input is the features; ``None`` means the last Linear in execution order.
        is_trained: Whether networks come with trained weights and running statistics instead of fresh ones.
    """

    build: Callable[[Key], nn.Module]
    classifier: str | None = None
    is_trained: bool = False


class Method(ABC):
    """Base class of methods: options, phases, and the server's own work after the last phase.

    Args:
        options: An instance of ``Options``, from the ``[method]`` table of the configuration.
        task: What is to be learned.
        architecture: The network to train.
        privacy: An instance of ``fedaf.privacy.options.PrivacyOptions`` with ``epsilon``, for runs with differential
            privacy.
    """

    Options: ClassVar[type[Options]] = Options
    #: The frozen dataclass of what the server keeps between rounds (see ``fedaf.protocol.records``), if anything.
    Memory: ClassVar[type[Any] | None] = None
    #: The method's name in tables and figures; unset: the name it is registered under.
    title: ClassVar[str] = ""
    #: Bump on every change that changes the numbers of a run. Runs of different versions are never averaged.
    version: ClassVar[int] = 1
    #: The name under which presets have values for this class and its subclasses; empty means no values.
    family: ClassVar[str] = ""
    #: Whether this is a reference for comparisons and no federated method. It runs in one process only, and what its
    #: phases exchange counts as no communication.
    reference: ClassVar[bool] = False
    #: Whether one client gets the data of all clients; for references only.
    pools: ClassVar[bool] = False
    #: Whether the server's model is what the method learned. If not, the server's model is not tested, and
    #: ``evaluation`` logs ``accuracy``.
    has_global_model: ClassVar[bool] = True
    #: Whether this class, not one derived from it, keeps the guarantee of differential privacy if ``privacy`` is given.
    keeps_privacy: ClassVar[bool] = False
    #: Whether clients send class-wise knowledge, which a share of the privacy budget can pay for.
    sends_knowledge: ClassVar[bool] = False
    #: Other defaults of options in runs with differential privacy.
    private_defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, options: Any, task: Task, architecture: Architecture, privacy: Any = None) -> None:
        self.options = options
        self.privacy = privacy
        self.task = task
        self.architecture = architecture

    @classmethod
    def private_options(cls, privacy: Any) -> Mapping[str, Any]:
        """Return the values that options must have with differential privacy: others need the private data again.

        Args:
            privacy: As in the constructor.
        """
        return {}

    @property
    @abstractmethod
    def phases(self) -> tuple[Phase, ...]:
        """The phases of one round, in order."""

    @property
    def evaluation(self) -> Phase | None:
        """A phase after the server's own work, for the report only, for methods with personal models.

        Clients work from the state that this round produced, and do not change it. ``aggregate`` logs
        ``personal_accuracy`` and ``personal_samples`` by client and, if it is known, ``personal_own_accuracy``: the
        accuracy on the client's own label distribution.
        """
        return None

    def phase(self, name: str) -> Phase:
        """Return the phase of this name.

        Raises:
            Refused: The method has no such phase.
        """
        known = [*self.phases, *([self.evaluation] if self.evaluation else [])]
        for phase in known:
            if phase.name == name:
                return phase
        names = ", ".join(phase.name for phase in known)
        raise Refused(f"there is no phase {name[:80]!r}; expected one of {names}", code="FEDAF-REQUEST-PHASE")

    def build_model(self, key: Key) -> nn.Module:
        """Return the model to train, initialised from ``key``. Override this method to add a head."""
        return self.architecture.build(key)

    @property
    def classifier(self) -> str | None:
        """Name of the model's layer whose input is the features; ``None`` means the last Linear in execution order."""
        return self.architecture.classifier

    def initial(self, key: Key) -> ServerState:
        """Return the state before round 1. Override it if ``Memory`` has fields without defaults."""
        model = dict(self.build_model(key.derive("model")).state_dict())
        return ServerState(key=key, model=model, memory=None if self.Memory is None else self.Memory())

    def check(self, counts: Mapping[str, Sequence[int]]) -> None:  # noqa: B027 - most methods take any split
        """Check the options against the split, before the run starts.

        Args:
            counts: Samples per class, by client.

        Raises:
            UserError: The method cannot work on this split.
        """

    def finish(self, server: ServerState, engine: Engine) -> ServerState:
        """Do the server's own work after the last phase, and return its new state."""
        return server

    def personal_weights(self, model: Tensors, state: Tensors) -> Tensors | None:
        """Return the weights of a client's personal model, for use after the run.

        Args:
            model: The global model after the last round.
            state: The state that the client kept after its last accepted round.

        Returns:
            Parameters and buffers, or ``None`` for methods without personal models.
        """
        return None

    def exhibits(self, server: ServerState) -> Mapping[str, Exhibit]:
        """Return the images that clients shared, by client."""
        return {}

    def discloses(self, counts: Sequence[int]) -> Disclosure | None:
        """Return what a round reveals about a client.

        Args:
            counts: The client's samples per class.

        Returns:
            The disclosure, or ``None`` if the method does not say. The client's policy can then only allow or refuse
            the method by name.
        """
        return None

    def leaves_out(self, counts: Sequence[int]) -> Mapping[int, str] | None:
        """Return the classes that a client holds too few samples of, for a method that learns from condensed images.

        Args:
            counts: The client's samples per class.

        Returns:
            The classes with samples that are never used, each with the name of the method's option that decides;
            ``None`` for methods that use all samples.
        """
        return None

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload | None:
        """Return the work of one round for these samples per class by client, or ``None`` if unknown."""
        return None
