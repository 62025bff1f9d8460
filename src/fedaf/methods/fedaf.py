"""FedAF: Wang et al., "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity" (CVPR 2024).

Clients tell the server class-wise mean logits and soft labels (phase ``knowledge``), then condense their data with
the peers' mean logits as a guide (phase ``condense``); the server trains the model on the condensed images, held
to the clients' soft labels. Equations are named in ``fedaf.condensation``.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field as Option
from torch import Tensor

from fedaf.condensation.audit import AUDIT_SCALARS, copy_audit, pool_audits
from fedaf.condensation.condenser import Condensed, Job, condense
from fedaf.condensation.initialisation import initial_images
from fedaf.condensation.knowledge import average_over_owners, knowledge_matching, mean_logits, soft_labels
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import resample
from fedaf.data.pixels import normalise, to_uint8
from fedaf.models.backbone import Backbone
from fedaf.models.weights import FreshWeights
from fedaf.protocol import (
    Client,
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
from fedaf.training.evaluate import predict
from fedaf.training.fit import Loss, cross_entropy, fit

_CONDENSED = "condensed:"  # one record of server memory for each client
_LARGEST_LOGIT = 1e4  # one client's absurd logit would steer all its peers


class FedAFOptions(CondensationOptions):
    gamma: float = Option(0.9, ge=0, le=1, description="re-sampling: w <- gamma w + (1 - gamma) w~ at every step")
    shared_resampling: bool = Option(True, description="all clients share w~ of a step; false: each draws its own")
    temperature: float = Option(2.0, gt=0, description="tau of the soft labels")
    cdc: bool = Option(True, description="collaborative data condensation; false is the paper's 'w/o CDC'")
    lambda_loc: float = Option(1e-4, ge=0, description="weight of CDC's sliced Wasserstein distance")
    lgkm: bool = Option(True, description="local-global knowledge matching; false is the paper's 'w/o LGKM'")
    lambda_glob: float = Option(0.01, ge=0, description="weight of LGKM in server training")
    lgkm_from_round: int = Option(2, ge=1, description="first round with LGKM; soft labels of round 1 are noise")
    lgkm_reduction: Literal["mean", "sum"] = Option("mean", description="over the classes present")
    lgkm_students: Literal["batch", "all"] = Option("batch", description="what T is taken of: mini-batch, or all of S")


class Knowledge(Phase):
    """Up: V_k and R_k of the classes the client condenses. Down: the global model."""

    name = "knowledge"

    def __init__(self, method: "FedAF") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model)

    def schema(self, ask: Payload) -> Schema:
        classes = self.method.task.num_classes
        return Schema(
            {
                "classes": Field(torch.int64, ("owned",), low=0, high=classes - 1),
                "mean_logits": Field(torch.float32, ("owned", classes), low=-_LARGEST_LOGIT, high=_LARGEST_LOGIT),
                "soft_labels": Field(torch.float32, ("owned", classes), low=0, high=1),
            },
            lengths={"owned": (0, classes)},
            checks=(_ascending_classes, _rows_are_distributions),
        )

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        method = self.method
        model = method.build_model(client.key)
        model.load_state_dict(ask.tensors)
        logits = predict(model, client.shard.images, method.task, engine)
        v, _ = mean_logits(logits, client.shard.labels.to(engine.device), method.task.num_classes)
        classes = method.condensed_classes(client.shard.counts)
        v = v[classes].cpu()
        reply = {
            "classes": torch.tensor(classes, dtype=torch.int64),
            "mean_logits": v,
            "soft_labels": soft_labels(v, method.options.temperature),
        }
        return Outcome(Payload(reply), scratch=ask.tensors)

    def fold(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        shared = [reply.tensors for reply in replies.values()]
        classes = self.method.task.num_classes
        v, known = average_over_owners([(s["classes"], s["mean_logits"]) for s in shared], classes)
        r, _ = average_over_owners([(s["classes"], s["soft_labels"]) for s in shared], classes)
        owned = {f"owned:{name}": reply.tensors["classes"] for name, reply in replies.items()}
        return replace(server, scratch={**owned, "v": v, "r": r, "known": known})


class Condense(Phase):
    """Up: the condensed images as uint8, and the copy audit. Down: the peers' mean logits of the client's classes;
    the global model is already there, as scratch of the phase before."""

    name = "condense"

    def __init__(self, method: "FedAF") -> None:
        self.method = method

    def ask(self, server: ServerState, client_id: str) -> Payload:
        classes = server.scratch[f"owned:{client_id}"]
        key = server.key.fold("resample", server.round)
        return Payload({"classes": classes, "v": server.scratch["v"][classes]}, {"resample_key": key.value})

    def schema(self, ask: Payload) -> Schema:
        classes, task = ask.tensors["classes"], self.method.task
        owned = len(classes)
        measures = {name: Number(float, 0) for name in ("loss_dm", "loss_cdc", "gradient_ratio")}
        return Schema(
            {
                "classes": Field(torch.int64, (owned,), equals=classes),
                "images": Field(torch.uint8, (owned, self.method.options.ipc, *task.image_shape)),
            },
            {**measures, **AUDIT_SCALARS},
        )

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return next(iter(self.work([ask], [client], engine)))

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        started = [self._job(ask, client) for ask, client in zip(asks, clients, strict=True)]
        jobs = [job for job, _ in started]
        results: Iterable[Condensed]
        if self.method.options.shared_resampling:
            results = self._condense(jobs, clients, Key(int(asks[0].scalars["resample_key"])), engine)
        else:
            results = (
                result
                for job, client in zip(jobs, clients, strict=True)
                for result in self._condense([job], [client], client.key.fold("resample"), engine)
            )
        for client, (job, sources), result in zip(clients, started, results, strict=True):
            yield self._outcome(client, job, sources, result, engine)

    def _job(self, ask: Payload, client: Client) -> tuple[Job, Tensor]:
        method, options = self.method, self.method.options
        classes = ask.tensors["classes"]
        if classes.tolist() != method.condensed_classes(client.shard.counts):
            raise Refused("the server asks for other classes than this client condenses")
        kept = client.state.get("classes")
        if options.continue_images and kept is not None and torch.equal(kept, classes):
            images, sources = client.state["images"], client.state["sources"]
        else:
            images, sources = initial_images(
                client.shard, classes.tolist(), options, method.task, client.key.fold("init")
            )
        targets = ask.tensors["v"] if options.cdc else None
        return Job(client.shard, classes.tolist(), images, client.key, targets), sources

    def _condense(
        self, jobs: Sequence[Job], clients: Sequence[Client], key: Key, engine: Engine
    ) -> Sequence[Condensed]:
        """Condense jobs that share one global model, that of the first client's scratch, and one w~ at each step."""
        method, options = self.method, self.method.options
        model = method.build_model(key)
        model.load_state_dict(clients[0].scratch)
        weights, fresh = model.to(engine.device).state_dict(), FreshWeights(model)
        return condense(
            jobs,
            backbone=Backbone(model, method.task, engine.device, method.architecture.classifier),
            weights_at=lambda step: resample(weights, fresh(key.fold(step)), options.gamma),
            lambda_loc=options.lambda_loc,
            options=options,
            task=method.task,
            engine=engine,
        )

    def _outcome(self, client: Client, job: Job, sources: Tensor, result: Condensed, engine: Engine) -> Outcome:
        task = self.method.task
        shared = to_uint8(result.images, task.mean, task.std)
        classes = torch.tensor(job.classes, dtype=torch.int64)
        measures = {
            "loss_dm": result.loss_dm,
            "loss_cdc": result.loss_cdc,
            "gradient_ratio": result.gradient_ratio,
            **copy_audit(shared, sources, client.shard, job.classes, client.key.fold("audit"), engine.device),
        }
        state = {"classes": classes, "images": result.images, "sources": sources}
        return Outcome(Payload({"classes": classes, "images": shared}, measures), state=state)

    def fold(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        oldest = server.round - self.method.options.max_staleness
        memory = {
            name: record
            for name, record in server.memory.items()
            if not name.startswith(_CONDENSED) or int(record["round"]) >= oldest
        }
        for name, reply in replies.items():
            memory[_CONDENSED + name] = {**reply.tensors, "round": torch.tensor(server.round)}
        measures: list[Mapping[str, Any]] = [r.scalars for r in replies.values() if len(r.tensors["classes"])]

        def mean(name: str) -> float:
            return float(sum(m[name] for m in measures)) / max(1, len(measures))

        return replace(server, memory=memory).with_log(
            losses={"dm": mean("loss_dm"), "cdc": mean("loss_cdc")},
            cdc_to_dm_gradient=mean("gradient_ratio"),
            copy_audit=pool_audits(measures),
        )


class FedAF(Method):
    Options = FedAFOptions

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Knowledge(self), Condense(self))

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

    def finish(self, server: ServerState, engine: Engine) -> ServerState:
        """Train the global model on all condensed data: L_glob = L_CE + lambda_glob * L_LGKM."""
        options = self.options
        images, labels = self._condensed_data(server)
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
            key=server.key.fold("server", server.round),
            engine=engine,
            loss=self._loss(model.to(engine.device), server, engine),
        )
        if "lgkm" in losses:
            losses["lgkm"] /= options.lambda_glob  # logged as it is, like CDC, not as it is weighted
        server = replace(server, model={name: t.cpu() for name, t in model.state_dict().items()})
        return server.with_log(losses={**server.log.get("losses", {}), **losses})

    def exhibits(self, server: ServerState) -> Mapping[str, Exhibit]:
        return {
            client: Exhibit(record["classes"].tolist(), record["images"])
            for client, record in _condensed(server).items()
            if len(record["classes"])
        }

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        options = self.options
        samples = sum(sum(of_client) for of_client in counts.values())
        pairs = sum(len(self.condensed_classes(of_client)) for of_client in counts.values())
        return Workload(
            forward=samples + pairs * options.local_steps * options.real_batch,
            backward=pairs * options.ipc * (options.local_steps + options.server_epochs),
        )

    def _condensed_data(self, server: ServerState) -> tuple[Tensor, Tensor]:
        records = [record for _, record in sorted(_condensed(server).items())]
        images = torch.cat([record["images"].flatten(0, 1) for record in records])
        labels = torch.cat([record["classes"].repeat_interleave(self.options.ipc) for record in records])
        return images, labels

    def _loss(self, model: torch.nn.Module, server: ServerState, engine: Engine) -> Loss:
        options, classes = self.options, self.task.num_classes
        if not options.lgkm or options.lambda_glob == 0 or server.round < options.lgkm_from_round:
            return cross_entropy(model)
        known = server.scratch["known"].to(engine.device)
        log_r = server.scratch["r"].to(engine.device).clamp(min=torch.finfo(torch.float32).tiny).log()
        everything = [t.to(engine.device) for t in self._condensed_data(server)]

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = model(images)
            ce = F.cross_entropy(logits, labels)
            if options.lgkm_students == "all":
                labels = everything[1]
                logits = model(normalise(everything[0], self.task.mean, self.task.std))
            v, counts = mean_logits(logits, labels, classes)
            log_t = torch.log_softmax(v / options.temperature, dim=-1)
            lgkm = knowledge_matching(log_r, log_t, known & (counts > 0), reduction=options.lgkm_reduction)
            return {"ce": ce, "lgkm": options.lambda_glob * lgkm}

        return loss


def _condensed(server: ServerState) -> dict[str, Tensors]:
    """The last accepted images of each client."""
    return {
        name.removeprefix(_CONDENSED): record for name, record in server.memory.items() if name.startswith(_CONDENSED)
    }


def _ascending_classes(tensors: Tensors) -> None:
    if bool((tensors["classes"].diff() <= 0).any()):
        raise Refused("classes must be in ascending order, each once")


def _rows_are_distributions(tensors: Tensors) -> None:
    if bool(((tensors["soft_labels"].sum(1) - 1).abs() > 1e-3).any()):
        raise Refused("soft_labels must have rows that sum to 1")
