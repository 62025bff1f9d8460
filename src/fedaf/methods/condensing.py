"""What all methods that condense have in common: who condenses what, the exchange of condensed images, and a server
that trains the model on them. A method adds the networks of its steps, and whatever else guides the images."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedaf.condensation.condenser import Condensed, Job, Objective, condense
from fedaf.condensation.initialisation import initial_images
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Networks
from fedaf.data.pixels import to_uint8
from fedaf.models.backbone import Backbone
from fedaf.models.weights import FreshWeights
from fedaf.privacy.copy_audit import AUDIT_SCALARS, copy_audit, pool_audits
from fedaf.protocol import (
    Client,
    Disclosure,
    Engine,
    Exhibit,
    Field,
    Key,
    Method,
    Number,
    Outcome,
    Payload,
    Phase,
    Refused,
    Schema,
    ServerState,
    Tensors,
    UserError,
    Workload,
)
from fedaf.training.fit import Loss, fit

_CONDENSED = "condensed:"  # one record of server memory for each client


class CondensePhase(Phase):
    """Up: the condensed images as uint8, and the copy audit. Down: what guides them, and a key of the random networks
    that all clients of a round share."""

    name = "condense"
    #: What a client measures at its last step and reports: fields of ``Condensed``.
    measures: ClassVar[tuple[str, ...]] = ("loss_dm",)

    def __init__(self, method: "CondensingMethod") -> None:
        self.method = method

    @abstractmethod
    def ask(self, server: ServerState, client_id: str) -> Payload:
        """Must have the scalar ``resample_key``, that of ``resample_key(server)``."""

    @abstractmethod
    def global_model(self, ask: Payload, client: Client) -> Tensors:
        """The weights the server sent in this round."""

    @abstractmethod
    def networks(self, ask: Payload, weights: Tensors, fresh: FreshWeights, key: Key) -> Networks:
        """The network of each step."""

    def classes_asked(self, ask: Payload) -> Tensor | None:
        """The classes the server asks for, where it knows; else the client says which it condenses."""
        return None

    def targets(self, ask: Payload) -> Tensor | None:
        """The peers' mean logits of the client's classes, where they guide the images."""
        return None

    @property
    def lambda_loc(self) -> float:
        """The weight of the distance to ``targets``."""
        return 0.0

    @property
    def match_logits(self) -> bool:
        return False

    def schema(self, ask: Payload) -> Schema:
        task, asked = self.method.task, self.classes_asked(ask)
        return Schema(
            {
                "classes": Field(torch.int64, ("owned",), low=0, high=task.num_classes - 1, equals=asked),
                "images": Field(torch.uint8, ("owned", self.method.options.ipc, *task.image_shape)),
            },
            {**{name: Number(float, 0) for name in self.measures}, **AUDIT_SCALARS},
            lengths={"owned": (0, task.num_classes) if asked is None else (len(asked), len(asked))},
            checks=(ascending_classes,),
        )

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return next(iter(self.work([ask], [client], engine)))

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        started = [self._job(ask, client) for ask, client in zip(asks, clients, strict=True)]
        jobs = [job for job, _ in started]
        results: Iterable[Condensed]
        if self.method.options.shared_resampling:
            results = self._condense(jobs, asks, clients, Key(int(asks[0].scalars["resample_key"])), engine)
        else:
            results = (
                result
                for job, ask, client in zip(jobs, asks, clients, strict=True)
                for result in self._condense([job], [ask], [client], client.key.derive("resample"), engine)
            )
        for client, (job, sources), result in zip(clients, started, results, strict=True):
            yield self._outcome(client, job, sources, result, engine)

    def _job(self, ask: Payload, client: Client) -> tuple[Job, Tensor]:
        method, options = self.method, self.method.options
        classes = method.condensed_classes(client.shard.counts)
        asked, kept = self.classes_asked(ask), client.state.get("classes")
        if asked is not None and asked.tolist() != classes:
            raise Refused("the server asks for other classes than this client condenses")
        if options.continue_images and kept is not None and kept.tolist() == classes:
            images, sources = client.state["images"], client.state["sources"]
        else:
            images, sources = initial_images(client.shard, classes, options, method.task, client.key.derive("init"))
        return Job(client.shard, classes, images, client.key, self.targets(ask)), sources

    def _condense(
        self, jobs: Sequence[Job], asks: Sequence[Payload], clients: Sequence[Client], key: Key, engine: Engine
    ) -> Iterator[Condensed]:
        """Condense jobs that share one global model, that of the first client, and one network at each step."""
        method = self.method
        model = method.build_model(key)
        model.load_state_dict(self.global_model(asks[0], clients[0]))
        weights, fresh = model.to(engine.device).state_dict(), FreshWeights(model)
        objective = Objective(
            Backbone(model, method.task, engine.device, method.classifier),
            self.networks(asks[0], weights, fresh, key),
            self.lambda_loc,
            self.match_logits,
        )
        return condense(jobs, objective, options=method.options, task=method.task, engine=engine)

    def _outcome(self, client: Client, job: Job, sources: Tensor, result: Condensed, engine: Engine) -> Outcome:
        task = self.method.task
        shared = to_uint8(result.images, task.mean, task.std)
        classes = torch.tensor(job.classes, dtype=torch.int64)
        scalars = {
            **{name: getattr(result, name) for name in self.measures},
            **copy_audit(shared, sources, client.shard, job.classes, client.key.derive("audit"), engine.device),
        }
        state = {"classes": classes, "images": result.images, "sources": sources}
        sent = shared.shape[0] * shared.shape[1]
        return Outcome(Payload({"classes": classes, "images": shared}, scalars), state=state, images=sent)

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        oldest = server.round - self.method.options.max_staleness
        memory = {
            name: record
            for name, record in server.memory.items()
            if not name.startswith(_CONDENSED) or int(record["round"]) >= oldest
        }
        for name, reply in replies.items():
            memory[_CONDENSED + name] = {**reply.tensors, "round": torch.tensor(server.round)}
        measured: list[Mapping[str, Any]] = [r.scalars for r in replies.values() if len(r.tensors["classes"])]
        means = {name: float(sum(m[name] for m in measured)) / max(1, len(measured)) for name in self.measures}
        return replace(server, memory=memory).with_log(**self.log(means), copy_audit=pool_audits(measured))

    def log(self, means: Mapping[str, float]) -> dict[str, Any]:
        """What the log says of the clients' measures."""
        return {"losses": {"dm": means["loss_dm"]}}


class CondensingMethod(Method):
    """A method whose clients share condensed images. ``options`` are ``CondensationOptions`` or derived from them."""

    Options = CondensationOptions
    family = "condensing"

    def condensed_classes(self, counts: Sequence[int]) -> list[int]:
        """The classes a client with these samples condenses, and speaks for."""
        return [label for label, count in enumerate(counts) if count >= self.options.threshold]

    def check(self, counts: Mapping[str, Sequence[int]]) -> None:
        if not any(self.condensed_classes(of_client) for of_client in counts.values()):
            most = max(max(of_client) for of_client in counts.values())
            raise UserError(
                f"with ipc {self.options.ipc} a client condenses a class from {self.options.threshold} samples on, but "
                f"no client holds more than {most} of any class; lower method.{self.options.binding}."
            )

    def server_loss(self, model: nn.Module, server: ServerState, engine: Engine) -> Loss | None:
        """What the server minimises; cross-entropy unless a method says otherwise."""
        return None

    def finish(self, server: ServerState, engine: Engine) -> ServerState:
        """Train the global model on all condensed data."""
        options = self.options
        images, labels = self.condensed_data(server)
        model = self.build_model(server.key)
        model.load_state_dict(server.model)
        losses = fit(
            model,
            images,
            labels,
            task=self.task,
            epochs=options.server_epochs,
            batch_size=options.server_batch,
            lr=options.server_lr,
            momentum=options.server_momentum,
            key=server.key.derive("server", server.round),
            engine=engine,
            loss=self.server_loss(model.to(engine.device), server, engine),
        )
        server = replace(server, model={name: t.cpu() for name, t in model.state_dict().items()})
        return server.with_log(losses={**server.log.get("losses", {}), **losses})

    def condensed_data(self, server: ServerState) -> tuple[Tensor, Tensor]:
        """Images and labels of all clients whose images are in use."""
        records = [record for _, record in sorted(_condensed(server).items())]
        images = torch.cat([record["images"].flatten(0, 1) for record in records])
        labels = torch.cat([record["classes"].repeat_interleave(self.options.ipc) for record in records])
        return images, labels

    def exhibits(self, server: ServerState) -> Mapping[str, Exhibit]:
        return {
            client: Exhibit(record["classes"].tolist(), record["images"])
            for client, record in _condensed(server).items()
            if len(record["classes"])
        }

    def discloses(self, counts: Sequence[int]) -> Disclosure:
        options, classes = self.options, self.condensed_classes(counts)
        return Disclosure(
            fewest_samples=min((counts[label] for label in classes), default=0),
            images=dict.fromkeys(classes, options.ipc),
            local_steps=options.local_steps,
            initialisation=options.init,
        )

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        options = self.options
        pairs = sum(len(self.condensed_classes(of_client)) for of_client in counts.values())
        return Workload(
            forward=pairs * options.local_steps * options.real_batch,
            backward=pairs * options.ipc * (options.local_steps + options.server_epochs),
        )


def resample_key(server: ServerState) -> int:
    """The seed of this round's random networks, shared by all clients; it tells nothing of other draws."""
    return server.key.derive("resample", server.round).value


def ascending_classes(tensors: Tensors) -> None:
    if bool((tensors["classes"].diff() <= 0).any()):
        raise Refused("classes must be in ascending order, each once")


def _condensed(server: ServerState) -> dict[str, Tensors]:
    """The last accepted images of each client."""
    return {
        name.removeprefix(_CONDENSED): record for name, record in server.memory.items() if name.startswith(_CONDENSED)
    }
