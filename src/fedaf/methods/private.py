"""Condensing methods with differential privacy: clients condense against one noisy release of their data.

The release is made once and stored; condensation and everything after it are post-processing, which costs no further
privacy. docs/explanation/differential-privacy.md has the mechanism, the unit of privacy and what is outside of the
guarantee.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedaf.condensation.condenser import Condensed, Objective, condense
from fedaf.condensation.jobs import Job
from fedaf.condensation.resampling import Fixed, Networks, Recurring
from fedaf.condensation.terms import Term
from fedaf.data.pixels import to_uint8
from fedaf.errors import Refused
from fedaf.methods.condensing import CondensePhase
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import reference_images
from fedaf.models.weights import FreshWeights
from fedaf.privacy.accountant import Budget
from fedaf.privacy.features import BoundedOutputs, release_network
from fedaf.privacy.noise import ByteSource, seeded_bytes, system_bytes
from fedaf.privacy.options import PrivacyOptions
from fedaf.privacy.release import Release, add_count_noise, add_noise, class_sums
from fedaf.privacy.source import ReleasedMeans
from fedaf.protocol import Client, Engine, Key, Outcome, Payload, Phase, ServerState, Shard, Task, Tensors
from fedaf.protocol.policy import nearest_power_of_two
from fedaf.protocol.schema import Number, Schema

#: Norm of the noise on a class mean, in units of the features, at which the learning rate is halved; chosen on
#: held-out images.
_TOLERATED_NOISE = 0.15


@dataclass(frozen=True)
class ReleaseRequest:
    """What a server asks a release to describe. Nothing in it is private.

    Args:
        number: Which release of the run, from 1.
        key: The key of the random networks.
        weights: The global model, for the networks of a later release and for logits.
    """

    number: int
    key: Key
    weights: Tensors


@dataclass(frozen=True)
class _Exact:
    """What a release is made of, before the noise: sums of features and logits on the lattice, and counts, by class."""

    sums: Tensor
    counts: Tensor
    knowledge: Tensor | None


def release_number(server: ServerState, privacy: PrivacyOptions) -> int:
    """Return the release that clients use in this round: a new one in each of the first rounds, then the last one."""
    return min(server.round, privacy.releases)


def release_scalars(server: ServerState, privacy: PrivacyOptions) -> dict[str, int]:
    """Return the scalars of a request for a release."""
    number = release_number(server, privacy)
    return {"resample_key": server.key.derive("release", number).value, "round": number}


class Releases:
    """Makes, stores and recalls the releases of clients, for the phases of one method."""

    def __init__(self, phase: CondensePhase) -> None:
        self._phase, self._method = phase, phase.method
        self.privacy: PrivacyOptions = phase.method.privacy
        self.budget = Budget.of(self.privacy)

    def request(self, ask: Payload, weights: Tensors) -> ReleaseRequest:
        """Return the request in what a server sent.

        Raises:
            Refused: It asks for more releases than the budget is divided by.
        """
        number = ask.scalars.get("round")
        if not isinstance(number, int) or not 1 <= number <= self.privacy.releases:
            what = f"the server asks for release {number!r:.20}, but the run has {self.privacy.releases}"
            raise Refused(what, code="FEDAF-PRIVACY-RELEASES")
        return ReleaseRequest(number, Key(int(ask.scalars["resample_key"])), weights)

    def obtain(
        self, request: ReleaseRequest, client: Client, engine: Engine, features: BoundedOutputs | None = None
    ) -> Release:
        """Return the client's release: the stored one, or a new one if its budget suffices.

        Args:
            request: What the server asks for.
            client: The client.
            engine: Computes.
            features: The result of ``features``, if it is known.
        """
        assert client.vault is not None, "a client with differential privacy needs a vault"
        exact: list[_Exact] = []

        def prepare() -> None:  # may take minutes, and a deadline may end it: before the release is paid for
            exact.append(self._read(request, client, engine, features or self.features(request, engine)[1]))

        def make() -> Tensors:
            return self._add_noise(exact.pop(), request, client).to_tensors()

        name, mu = self._name(request), self.budget.release_mu
        stored = client.vault.obtain(name, number=request.number, mu=mu, make=make, prepare=prepare)
        return Release.from_tensors(stored)

    def classes(self, release: Release) -> list[int]:
        """Return the classes that the client condenses, by its noisy counts."""
        return release.classes(self._method.options.threshold, self.budget.counts_noise)

    def features(self, request: ReleaseRequest, engine: Engine) -> tuple[Backbone, BoundedOutputs]:
        """Return the bounded features that the sums of a release are of: random networks in the first release, those of
        the method in later ones."""
        reference, task = self._reference(request), self._method.task
        networks: Networks
        if request.number == 1:
            model = release_network(task, self.privacy.width).to(engine.device)
            backbone = Backbone(model, task, engine.device)
            networks = Recurring(model.state_dict(), FreshWeights(model), request.key, backbone, reference)
        else:
            global_model, backbone = self._global_model(request, engine)
            ask, fresh = Payload(scalars={"round": request.number}), FreshWeights(global_model)
            networks = self._phase.networks(ask, global_model.state_dict(), fresh, request.key, backbone)
        distribution = self._method.options.match_distribution
        count = self.privacy.networks
        return backbone, BoundedOutputs(networks, count, backbone, reference, engine, distribution=distribution)

    def logits(self, request: ReleaseRequest, engine: Engine) -> BoundedOutputs:
        """Return the bounded logits of the global model."""
        model, backbone = self._global_model(request, engine)
        return BoundedOutputs(Fixed(model.state_dict()), 1, backbone, self._reference(request), engine, logits=True)

    def _global_model(self, request: ReleaseRequest, engine: Engine) -> tuple[nn.Module, Backbone]:
        model = self._method.build_model(request.key)
        model.load_state_dict(request.weights)
        model.to(engine.device)
        return model, Backbone(model, self._method.task, engine.device, self._method.classifier)

    def _reference(self, request: ReleaseRequest) -> Tensor:
        return reference_images(self._method.task, request.key.derive("reference"))

    def _name(self, request: ReleaseRequest) -> str:
        """Return the name of a release: all that it depends on but the data and the global model.

        The model is stored with the release. A server that asks for the same release under another model receives
        images that describe the stored one.
        """
        method, task = self._method, self._method.task
        parts: list[Any] = [method.version, request.number, request.key.value, self.privacy.model_dump(mode="json")]
        shapes = {name: list(t.shape) for name, t in method.build_model(Key(0)).state_dict().items()}
        parts += [
            method.options.match_distribution,
            task.dataset,
            task.image_shape,
            task.num_classes,
            task.mean,
            task.std,
            shapes,
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def _read(self, request: ReleaseRequest, client: Client, engine: Engine, features: BoundedOutputs) -> _Exact:
        """Read the client's data, the only time."""
        shard, classes = client.shard, self._method.task.num_classes
        sums = class_sums(features.of_images(shard.images, self._method.task), shard.labels, classes)
        knowledge = None
        if self.budget.knowledge_noise is not None:
            logits = self.logits(request, engine).of_images(shard.images, self._method.task)
            knowledge = class_sums(logits, shard.labels, classes)
        return _Exact(sums, torch.bincount(shard.labels, minlength=classes), knowledge)

    def _add_noise(self, exact: _Exact, request: ReleaseRequest, client: Client) -> Release:
        budget, source = self.budget, self._noise(request, client)
        knowledge = None
        if exact.knowledge is not None and budget.knowledge_noise is not None:
            knowledge = add_noise(exact.knowledge, budget.knowledge_noise, source)[:, 0]
        sums = add_noise(exact.sums, budget.sums_noise, source)
        counts = add_count_noise(exact.counts, budget.counts_noise, source)
        weights = request.weights if request.number > 1 or knowledge is not None else {}
        return Release(sums, counts, knowledge, weights)

    def _noise(self, request: ReleaseRequest, client: Client) -> ByteSource:
        if self.privacy.simulate_seed is None:
            return system_bytes
        return seeded_bytes(Key(self.privacy.simulate_seed).derive("noise", client.id, request.number).value)


class PrivateCondense(CondensePhase):
    """Condense a release. Down: the global model. Up: images, and the losses against the release.

    Nothing in a reply depends on the private data but through the release: no audit, no exact count.

    Args:
        phase: The method's own phase, whose terms and networks are used where they need no private data.
    """

    def __init__(self, phase: CondensePhase) -> None:
        super().__init__(phase.method)
        self._phase = phase

    @cached_property
    def releases(self) -> Releases:
        """Makes and recalls the releases of clients."""
        return Releases(self._phase)

    @property
    def ratio_of(self) -> str | None:  # type: ignore[override]
        """As in the method's own phase."""
        return self._phase.ratio_of

    def ask(self, server: ServerState, client_id: str) -> Payload:
        scalars = release_scalars(server, self.method.privacy)
        if self.method.privacy.knowledge_share:  # the client still has the model
            return Payload(self._phase.ask(server, client_id).tensors, scalars)
        return Payload(server.model if scalars["round"] > 1 else {}, scalars)  # the first networks are random

    def classes_asked(self, ask: Payload) -> Tensor | None:
        return self._phase.classes_asked(ask) if self.method.privacy.knowledge_share else None

    def targets(self, ask: Payload) -> Tensor | None:
        return self._phase.targets(ask) if self.method.privacy.knowledge_share else None

    @property
    def terms(self) -> tuple[Term, ...]:
        """The method's own terms. What else a class's distribution says is part of the first one."""
        return self._phase.method_terms

    @property
    def audit_scalars(self) -> Mapping[str, Number]:
        return {}

    def audited(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        return server

    def global_model(self, ask: Payload, client: Client) -> Tensors:
        return client.scratch if self.method.privacy.knowledge_share else ask.tensors

    def networks(self, ask: Payload, weights: Tensors, fresh: FreshWeights, key: Key, backbone: Backbone) -> Networks:
        return self._phase.networks(ask, weights, fresh, key, backbone)

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        """Condense clients with the same networks together: those of the first release, which depend on a key only."""
        if len(clients) > 1 and any(ask.scalars.get("round") != 1 for ask in asks):
            yield from Phase.work(self, asks, clients, engine)
            return
        task, options, releases = self.method.task, self.method.options, self.releases
        requests = [releases.request(ask, self.global_model(ask, c)) for ask, c in zip(asks, clients, strict=True)]
        backbone, features = releases.features(requests[0], engine)
        made = [releases.obtain(r, client, engine, features) for r, client in zip(requests, clients, strict=True)]
        if requests[0].number > 1:  # networks near a global model: that of the stored release
            backbone, features = releases.features(replace(requests[0], weights=made[0].weights), engine)
        jobs = [self._private_job(*one) for one in zip(asks, clients, made, strict=True)]
        first, *others = self.terms
        # the gradient of a mean over ipc images falls as 1 / ipc: the weight makes image_lr fit any number of them
        terms = (replace(first, value=features.distance, weight=float(options.ipc)), *others)
        objective = Objective(backbone, features, terms, requests[0].key, ReleasedMeans)
        results = condense(jobs, objective, options=options, task=task, engine=engine)
        for job, release, result in zip(jobs, made, results, strict=True):
            yield self._private_outcome(job, release, result)

    def _private_job(self, ask: Payload, client: Client, release: Release) -> Job:
        """Return the client's job. It has no data: after the release, nothing reads the client's images.

        Images start from noise with the spectrum of photographs. Classes with more noise have a lower learning rate,
        so that their images fit less of it.
        """
        options, task = self.method.options, self.method.task
        classes, asked, nothing = self.releases.classes(release), self.classes_asked(ask), empty_shard(task)
        if asked is not None and asked.tolist() != classes:
            what = f"the server asks for the classes {asked.tolist()}, but this client condenses {classes}"
            raise Refused(what, code="FEDAF-CONDENSE-CLASSES")
        before = client.state["classes"].tolist() if "classes" in client.state else []
        if options.continue_images and classes and set(classes) <= set(before):
            images = client.state["images"][[before.index(label) for label in classes]]
        else:
            noise = reference_images(task, client.key.derive("init"), max(1, len(classes)) * options.ipc)
            images = noise.unflatten(0, (-1, options.ipc))[: len(classes)]
        rates = 1 / (1 + (release.noise(classes, self.releases.budget.sums_noise) / _TOLERATED_NOISE).square())
        rows = [torch.empty(0, dtype=torch.int64) for _ in classes]
        return Job(nothing, classes, images, client.key, self.targets(ask), rows, release.means(classes), rates)

    def _private_outcome(self, job: Job, release: Release, result: Condensed) -> Outcome:
        task, options = self.method.task, self.method.options
        classes = torch.tensor(job.classes, dtype=torch.int64)
        tensors = {"classes": classes, "images": to_uint8(result.images, task.mean, task.std)}
        if options.server_weighting:
            samples = [nearest_power_of_two(max(1, int(release.counts[label]))) for label in job.classes]
            tensors["samples"] = torch.tensor(samples, dtype=torch.int64)
        images = dict.fromkeys(job.classes, options.ipc)
        state = {"classes": classes, "images": result.images}
        return Outcome(Payload(tensors, self.measured(result)), state=state, images=images)


class PrivateKnowledge(Phase):
    """FedAF's exchange of knowledge from a release: V is a function of noisy sums of logits, R is a function of V.

    Args:
        phase: The method's own phase, which knows the schema and how to average.
        condense: The phase that makes releases.
        soft_labels: Returns R_k from V_k.
    """

    name = "knowledge"

    def __init__(self, phase: Phase, condense: PrivateCondense, soft_labels: Callable[[Tensor], Tensor]) -> None:
        self._phase, self._condense, self._soft_labels = phase, condense, soft_labels

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model, release_scalars(server, self._condense.method.privacy))

    def schema(self, ask: Payload) -> Schema:
        return self._phase.schema(ask)

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        releases = self._condense.releases
        request = releases.request(ask, ask.tensors)
        release = releases.obtain(request, client, engine)
        classes = releases.classes(release)
        logits = releases.logits(replace(request, weights=release.weights), engine)
        v = logits.unbounded(release.mean_logits(classes)).cpu()
        tensors = {"classes": torch.tensor(classes, dtype=torch.int64), "mean_logits": v}
        return Outcome(Payload({**tensors, "soft_labels": self._soft_labels(v)}), scratch=ask.tensors)

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        return self._phase.aggregate(server, replies)


def empty_shard(task: Task) -> Shard:
    """Return a shard without samples."""
    nothing = torch.empty(0, *task.image_shape, dtype=torch.uint8)
    return Shard(nothing, torch.empty(0, dtype=torch.int64), task.num_classes)
