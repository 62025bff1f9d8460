"""The common part of all methods that condense.

It covers which client condenses which classes, the exchange of condensed images, and a server that trains the model on
them. A method adds the networks of the condensation steps and the terms of the image loss.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedaf.condensation.clusters import are_clusters_of, clusters_of
from fedaf.condensation.condenser import Condensed, Objective, condense
from fedaf.condensation.initialisation import NO_SOURCE, initial_images
from fedaf.condensation.jobs import Job
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Networks
from fedaf.condensation.terms import Term, distributions_distance, features_distance, spreads_distance
from fedaf.data.pixels import normalise, to_uint8
from fedaf.errors import FedafError, Refused, UserError
from fedaf.methods.condensed import CondensedMemory, CondensedRecord
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import estimate_statistics, reference_images
from fedaf.models.weights import FreshWeights
from fedaf.privacy.copy_audit import AUDIT_SCALARS, audit_tensor, copy_audit, pool_audits, rounded_audit
from fedaf.privacy.features import release_cost
from fedaf.protocol.contract import Client, Engine, Method, Outcome, Phase, ServerState
from fedaf.protocol.keys import Key
from fedaf.protocol.payload import Payload, Tensors
from fedaf.protocol.policy import images_per_sample, nearest_power_of_two, rounded_up
from fedaf.protocol.reports import Disclosure, Exhibit, Guarantee, Workload
from fedaf.protocol.schema import Field, Number, Schema
from fedaf.training.fit import Loss, fit
from fedaf.training.order import epoch_order

_GRADIENT_RATIO = "gradient_ratio"
_STATISTICS_BATCHES = 100
_LARGEST_CLAIM = 64  # times the median: limits how much of the server's training one client can claim
#: What a client reports of its own count: images sent over all runs, and the most of a class per sample of that class,
#: rounded up.
_DISCLOSED = {"disclosed_images": Number(int, 0, 1 << 32), "disclosed_per_sample_at_most": Number(float, 0)}


class CondensePhase(Phase):
    """Condense the clients' data.

    Down: the inputs of the method's loss terms, and the key of the random networks that all clients of a round share.
    Up: the condensed images as uint8, of the classes for which the client's policy permits more; the losses of the last
    step, the copy audit, and how many images the client has disclosed.
    """

    name = "condense"
    #: The term whose gradient, relative to the first term's, clients report; ``None``: no ratio is reported.
    ratio_of: ClassVar[str | None] = None

    def __init__(self, method: "CondensingMethod") -> None:
        self.method = method

    @abstractmethod
    def ask(self, server: ServerState, client_id: str) -> Payload:
        """Return the request; it must have the scalar ``resample_key``, the value of ``resample_key(server)``."""

    @abstractmethod
    def global_model(self, ask: Payload, client: Client) -> Tensors:
        """Return the weights that the server sent in this round."""

    @abstractmethod
    def networks(self, ask: Payload, weights: Tensors, fresh: FreshWeights, key: Key, backbone: Backbone) -> Networks:
        """Return the networks of all steps."""

    @property
    def method_terms(self) -> tuple[Term, ...]:
        """The method's own terms of the image loss; the first one is the reference of the others' gradients."""
        return (Term("dm", features_distance),)

    @property
    def terms(self) -> tuple[Term, ...]:
        """All terms of the image loss: the method's own, and those that any condensing method can add by an option."""
        options = self.method.options
        optional = (
            Term("spread", spreads_distance, options.match_spread),
            Term("distribution", distributions_distance, options.match_distribution, directions=True),
        )
        return (*self.method_terms, *(term for term in optional if term.weight))

    def classes_asked(self, ask: Payload) -> Tensor | None:
        """Return the classes the server asks for, or ``None`` if the client decides."""
        return None

    def targets(self, ask: Payload) -> Tensor | None:
        """Return the mean logits v_c of the client's classes, for terms that need them."""
        return None

    @property
    def audit_scalars(self) -> Mapping[str, Number]:
        """The scalars of a reply that compare it with the client's data."""
        return {**AUDIT_SCALARS, **_DISCLOSED}

    @property
    def measurements(self) -> tuple[str, ...]:
        """The scalars that clients measure at the last step and report."""
        losses = tuple(f"loss_{term.name}" for term in self.terms)
        return losses if self.ratio_of is None else (*losses, _GRADIENT_RATIO)

    def schema(self, ask: Payload) -> Schema:
        task, asked = self.method.task, self.classes_asked(ask)
        tensors = {
            "classes": Field(torch.int64, ("owned",), low=0, high=task.num_classes - 1, among=asked),
            "images": Field(torch.uint8, ("owned", self.method.options.ipc, *task.image_shape)),
        }
        if self.method.options.server_weighting:
            tensors["samples"] = Field(torch.int64, ("owned",), low=1, high=1 << 40)
        return Schema(
            tensors,
            {**{name: Number(float, 0) for name in self.measurements}, **self.audit_scalars},
            lengths={"owned": (0, task.num_classes if asked is None else len(asked))},
            checks=(ascending_classes,),
        )

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return next(iter(self.work([ask], [client], engine)))

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        """Condense clients that share the networks of all steps together, others one by one."""
        method, shared = self.method, self.method.options.shared_resampling
        if not shared and len(clients) > 1:
            yield from super().work(asks, clients, engine)
            return
        key = Key(int(asks[0].scalars["resample_key"])) if shared else clients[0].key.derive("resample")
        started = [self._job(ask, client) for ask, client in zip(asks, clients, strict=True)]
        jobs, objective = [job for job, _ in started], self._objective(asks[0], clients[0], key, engine)
        results = condense(jobs, objective, options=method.options, task=method.task, engine=engine)
        for client, (job, kept), result in zip(clients, started, results, strict=True):
            yield self._outcome(client, job, kept, result, engine)

    def _job(self, ask: Payload, client: Client) -> tuple[Job, Mapping[str, Tensor]]:
        """Return a client's job, and its state that does not depend on the result: ``sources``, and the clusters of its
        samples if images start from them."""
        method, options = self.method, self.method.options
        condensed = method.condensed_classes(client.shard.counts)
        asked, targets = self.classes_asked(ask), self.targets(ask)
        if asked is not None and asked.tolist() != condensed:
            problem = f"the server asks for the classes {asked.tolist()}, but this client condenses {condensed}"
            raise Refused(problem, code="FEDAF-CONDENSE-CLASSES")
        classes = [label for label in condensed if client.may_send(label, options.ipc)]
        if targets is not None:
            targets = targets[[condensed.index(label) for label in classes]]
        before = client.state["classes"].tolist() if "classes" in client.state else []
        if options.continue_images and classes and set(classes) <= set(before):
            rows = [before.index(label) for label in classes]
            images, sources = client.state["images"][rows], client.state["sources"][rows]
            clusters = None
        else:
            clusters = self._clusters(client)
            key = client.key.derive("init")
            images, sources = initial_images(client.shard, classes, options, method.task, key, clusters)
        kept = {"sources": sources} if clusters is None else {"sources": sources, "clusters": clusters}
        matched = None
        if options.matches_clusters:
            matched = [of_class[of_class != NO_SOURCE].unique() for of_class in sources]
        return Job(client.shard, classes, images, client.key, targets, matched), kept

    def _clusters(self, client: Client) -> Tensor | None:
        """Return the clusters of the client's samples, from its state if they are known: computing them takes time."""
        if self.method.options.init != "clusters":
            return None
        known, size = client.state.get("clusters"), self.method.options.init_mean_of
        if known is not None and are_clusters_of(known, client.shard, size):
            return known
        return clusters_of(client.shard, size)

    def _objective(self, ask: Payload, client: Client, key: Key, engine: Engine) -> Objective:
        """Return the image loss under the networks that follow from the global model and ``key``."""
        method = self.method
        model = method.build_model(key)
        model.load_state_dict(self.global_model(ask, client))
        backbone = Backbone(model, method.task, engine.device, method.classifier)
        networks = self.networks(ask, model.to(engine.device).state_dict(), FreshWeights(model), key, backbone)
        return Objective(backbone, networks, self.terms, key)

    def measured(self, result: Condensed) -> dict[str, float]:
        """Return the values of ``measurements``."""
        scalars = {f"loss_{name}": loss for name, loss in result.losses.items()}
        if self.ratio_of is not None:
            scalars[_GRADIENT_RATIO] = result.gradient_ratios[self.ratio_of]
        return scalars

    def _outcome(
        self, client: Client, job: Job, kept: Mapping[str, Tensor], result: Condensed, engine: Engine
    ) -> Outcome:
        task = self.method.task
        shared = to_uint8(result.images, task.mean, task.std)
        classes = torch.tensor(job.classes, dtype=torch.int64)
        scalars = self.measured(result)
        key, before = client.key.derive("audit"), client.state.get("audit")
        audit = copy_audit(shared, kept["sources"], client.shard, job.classes, key, engine.device, before)
        state = {**kept, "classes": classes, "images": result.images, "audit": audit_tensor(audit)}
        scalars |= rounded_audit(audit)
        images = dict.fromkeys(job.classes, self.method.options.ipc)
        disclosed = Counter(client.sent) + Counter(images)
        scalars["disclosed_images"] = disclosed.total()
        scalars["disclosed_per_sample_at_most"] = rounded_up(images_per_sample(disclosed, client.shard.counts))
        tensors = {"classes": classes, "images": shared}
        if self.method.options.server_weighting:
            samples = [nearest_power_of_two(client.shard.counts[label]) for label in job.classes]
            tensors["samples"] = torch.tensor(samples, dtype=torch.int64)
        return Outcome(Payload(tensors, scalars), state=state, images=images)

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Add the images of the clients that replied, and drop those of clients absent for ``max_staleness`` rounds."""
        options, memory = self.method.options, server.memory
        oldest = server.round - options.max_staleness
        condensed = {name: record for name, record in memory.condensed.items() if record.seen >= oldest}
        for name, reply in replies.items():
            classes, images = reply.tensors["classes"], reply.tensors["images"]
            samples = reply.tensors.get("samples", torch.ones_like(classes))
            none = classes[:0]
            before = condensed.get(name, CondensedRecord(none, images[:0], none, none, server.round))
            condensed[name] = before.adding(classes, images, samples, round=server.round, window=options.replay)
        measured: list[Mapping[str, Any]] = [r.scalars for r in replies.values() if len(r.tensors["classes"])]
        means = {name: float(sum(m[name] for m in measured)) / max(1, len(measured)) for name in self.measurements}
        log: dict[str, Any] = {"losses": {term.name: means[f"loss_{term.name}"] for term in self.terms}}
        if self.ratio_of is not None:
            log[f"{self.ratio_of}_to_{self.terms[0].name}_gradient"] = means[_GRADIENT_RATIO]
        server = replace(server, memory=replace(memory, condensed=condensed)).with_log(**log)
        return self.audited(server, replies)

    def audited(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Add what the replies say about the disclosure of private data."""
        audits = {**server.memory.audits, **{name: audit_tensor(reply.scalars) for name, reply in replies.items()}}
        server = replace(server, memory=replace(server.memory, audits=audits))
        disclosure = {name: _disclosure(reply, self.method.options.ipc) for name, reply in replies.items()}
        return server.with_log(copy_audit=pool_audits(audits.values()), disclosure=disclosure)


class CondensingMethod(Method):
    """A method whose clients share condensed images. Its options derive from ``CondensationOptions``."""

    Options = CondensationOptions
    Memory = CondensedMemory
    family = "condensing"
    version = 2

    private_defaults: ClassVar[Mapping[str, Any]] = {  # chosen on held-out training images
        "local_steps": 1000,
        "image_lr": 30.0,
        "image_lr_decay": True,
        "clamp_images": True,
        "server_weighting": 1.0,
        "server_average": 0.17,
        "server_cutmix": 0.5,
        "server_lr": 0.01,
    }

    @classmethod
    def private_options(cls, privacy: Any) -> Mapping[str, Any]:
        return {
            "init": "noise",
            "bn_mode": "eval",
            "shared_resampling": True,
            "match_clusters": False,
            "match_spread": 0.0,
        }

    def initial(self, key: Key) -> ServerState:
        """Return the state before round 1, with running statistics that fit the fresh model.

        A new BatchNorm layer has mean 0 and variance 1, so in eval mode it does not normalise. Features and image
        gradients would then be far too small in round 1. A model that comes with trained weights keeps its statistics.
        """
        state = super().initial(key)
        if self.architecture.is_trained:
            return state
        model = self.build_model(key)
        model.load_state_dict(state.model)
        estimate_statistics(model, [reference_images(self.task, key.derive("statistics"))])
        return replace(state, model=dict(model.state_dict()))

    def condensed_classes(self, counts: Sequence[int]) -> list[int]:
        """Return the classes that a client with these samples per class condenses, and for which it sends knowledge."""
        return [label for label, count in enumerate(counts) if count >= self.options.threshold]

    def leaves_out(self, counts: Sequence[int]) -> dict[int, str] | None:
        if self.privacy is not None:  # the noise of a release decides
            return None
        reasons = {label: self.options.too_few_for(count) for label, count in enumerate(counts) if count}
        return {label: reason for label, reason in reasons.items() if reason is not None}

    def check(self, counts: Mapping[str, Sequence[int]]) -> None:
        if self.privacy is not None:  # an error would tell about exact counts
            return
        if not any(self.condensed_classes(of_client) for of_client in counts.values()):
            most = max(max(of_client) for of_client in counts.values())
            problem = f"no client has more than {most} samples of a class, but {self.options.threshold} are needed"
            raise UserError(f"{problem}; lower method.{self.options.binding}.", code="FEDAF-CONDENSE-NO-CLASS")

    def server_loss(self, model: nn.Module, server: ServerState, engine: Engine) -> Loss | None:
        """Return the loss of server training; ``None`` is cross-entropy."""
        return None

    def finish(self, server: ServerState, engine: Engine) -> ServerState:
        """Train the global model on all condensed data."""
        options = self.options
        images, labels = self.condensed_data(server)
        if not len(labels):
            what = f"round {server.round}: the server has no condensed images to train on, because no client sent any"
            limits = "max_images_per_sample, max_total_images_per_sample and max_images"
            advice = f"lower method.ipc, or raise these limits of the clients' policies: {limits}."
            if self.privacy is not None:
                advice = "their noisy counts are too small; raise privacy.epsilon, or lower method.ipc."
            raise FedafError(f"{what}; {advice}", code="FEDAF-CONDENSE-NO-IMAGES")
        weights = self.condensed_weights(server)
        model = self.build_model(server.key)
        model.load_state_dict(server.model)
        losses = fit(
            model,
            images,
            labels,
            task=self.task,
            epochs=options.epochs(len(labels)),
            batch_size=options.server_batch,
            lr=options.server_lr,
            momentum=options.server_momentum,
            key=server.key.derive("server", server.round),
            engine=engine,
            loss=self.server_loss(model.to(engine.device), server, engine),
            ema=options.ema(len(labels)),
            cutmix=options.server_cutmix,
            weights=weights,
        )
        if options.server_average:
            key = server.key.derive("statistics", server.round)
            self._estimate_statistics(model, images, epoch_order(len(labels), key.torch(), weights), engine)
        server = replace(server, model={name: t.cpu() for name, t in model.state_dict().items()})
        return server.with_log(losses={**server.log.get("losses", {}), **losses})

    def _estimate_statistics(self, model: nn.Module, images: Tensor, order: Tensor, engine: Engine) -> None:
        """Estimate the running statistics of averaged weights on the condensed images, in this order."""
        batches = order.split(self.options.server_batch)
        full = [rows for rows in batches if len(rows) == len(batches[0])][:_STATISTICS_BATCHES]
        with engine.autocast():
            inputs = (normalise(images[rows].to(engine.device), self.task.mean, self.task.std) for rows in full)
            estimate_statistics(model, inputs)

    def condensed_data(self, server: ServerState) -> tuple[Tensor, Tensor]:
        """Return S, the condensed images of all clients, and their labels."""
        records = server.memory.in_order.values()
        labels = [record.classes.repeat_interleave(self.options.ipc) for record in records]
        return torch.cat([record.images.flatten(0, 1) for record in records]), torch.cat(labels)

    def condensed_weights(self, server: ServerState) -> Tensor | None:
        """Return how often the server draws each image of S, relative to the others; ``None``: all alike."""
        if not self.options.server_weighting:
            return None
        samples = torch.cat([record.samples for record in server.memory.in_order.values()]).double()
        samples = samples.clamp(max=_LARGEST_CLAIM * samples.median())
        return samples.pow(self.options.server_weighting).repeat_interleave(self.options.ipc)

    def exhibits(self, server: ServerState) -> Mapping[str, Exhibit]:
        latest = {client: record.latest for client, record in server.memory.condensed.items() if len(record.classes)}
        return {client: Exhibit(record.classes.tolist(), record.images) for client, record in latest.items()}

    def discloses(self, counts: Sequence[int]) -> Disclosure:
        options, classes = self.options, self.condensed_classes(counts)
        if self.privacy is not None:
            simulated = self.privacy.simulate_seed is not None
            guarantee = Guarantee(self.privacy.epsilon, self.privacy.delta, simulated)
            return Disclosure(0, {}, options.local_steps, options.starts_from, guarantee)
        samples = [counts[label] for label in classes]
        if options.matches_clusters:  # of ipc clusters, or of all
            samples = [min(count, options.ipc * options.init_mean_of) for count in samples]
        fewest = min(samples, default=0)
        return Disclosure(fewest, dict.fromkeys(classes, options.ipc), options.local_steps, options.starts_from)

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        options = self.options
        pairs = sum(len(self.condensed_classes(of_client)) for of_client in counts.values())
        forward, images, share = pairs * options.local_steps * options.real_batch, pairs * options.ipc, 1.0
        if self.privacy is not None:
            share = release_cost(self.build_model(Key(0)), self.task, self.privacy.width)
            forward = share * self.privacy.networks * sum(sum(of_client) for of_client in counts.values())
        backward = images * (share * options.local_steps + options.epochs(images))
        return Workload(forward, backward)


def resample_key(server: ServerState) -> int:
    """Return the seed of this round's random networks. All clients share it; it reveals nothing about other draws."""
    return server.key.derive("resample", server.round).value


def _disclosure(reply: Payload, ipc: int) -> dict[str, Any]:
    """Return the images of a reply by class, and the client's own count over all runs."""
    images = {str(label): ipc for label in reply.tensors["classes"].tolist()}
    total, per_sample = (reply.scalars[name] for name in _DISCLOSED)
    return {"images": images, "total": total, "per_sample_at_most": per_sample}


def ascending_classes(tensors: Tensors) -> None:
    """Refuse a reply whose classes are not strictly ascending."""
    if bool((tensors["classes"].diff() <= 0).any()):
        raise Refused("classes must be in ascending order without repeats", code="FEDAF-REPLY-CLASSES")
