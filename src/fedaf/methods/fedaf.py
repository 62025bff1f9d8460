"""FedAF: Wang et al., "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity" (CVPR 2024).

In each round:

1. Phase ``knowledge``: clients send class-wise mean logits V_k and soft labels R_k; the server averages them.
2. Phase ``condense``: clients condense their data, guided by the averaged mean logits V (collaborative data
   condensation, CDC).
3. The server trains the model on all condensed images, guided by the averaged soft labels R (local-global knowledge
   matching, LGKM).

Equation numbers are the paper's. The formulas are in ``fedaf.condensation``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.condensation.knowledge import average_over_owners, knowledge_matching, mean_logits, soft_labels
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Blended, Networks, Perturbed
from fedaf.condensation.terms import Term, features_distance, targets_distance
from fedaf.data.pixels import normalise
from fedaf.errors import Refused
from fedaf.methods.condensing import CondensePhase, CondensingMethod, ascending_classes, resample_key
from fedaf.methods.private import PrivateCondense, PrivateKnowledge
from fedaf.models.backbone import Backbone
from fedaf.models.weights import FreshWeights
from fedaf.protocol import Client, Engine, Field, Key, Outcome, Payload, Phase, Schema, ServerState, Tensors, Workload
from fedaf.training.evaluate import predict
from fedaf.training.fit import Loss, Weighted

_LARGEST_LOGIT = 1e4  # limits how far one client can move the average that all others follow


class FedAFOptions(CondensationOptions):
    """Options of FedAF."""

    resampling: Literal["blend", "distance"] = Option(
        "blend", description="networks of the steps: w blended with a random network, or moved by a distance"
    )
    gamma: float = Option(0.9, ge=0, le=1, description="blend: steps use gamma w + (1 - gamma) w~, w~ is random")
    rho: float = Option(5.0, ge=0, description="distance: steps use w moved this far in a random direction")
    temperature: float = Option(2.0, gt=0, description="temperature tau of the soft labels")
    cdc: bool = Option(True, description="collaborative data condensation; false is the paper's 'w/o CDC'")
    lambda_loc: float = Option(1e-4, ge=0, description="weight of the CDC loss, a sliced Wasserstein distance")
    lgkm: bool = Option(True, description="local-global knowledge matching; false is the paper's 'w/o LGKM'")
    lambda_glob: float = Option(0.01, ge=0, description="weight of the LGKM loss in server training")
    lgkm_from_round: int = Option(2, ge=1, description="first round with LGKM; soft labels of round 1 are noise")
    lgkm_reduction: Literal["mean", "sum"] = Option("mean", description="reduction of the LGKM loss over classes")
    lgkm_students: Literal["batch", "all"] = Option(
        "batch", description="compute the soft labels T on each mini-batch (batch) or on all condensed data (all)"
    )


@dataclass(frozen=True)
class GlobalKnowledge:
    """What the server learned in phase ``knowledge``.

    Args:
        classes: The classes that each client condenses, by client.
        v: Averaged mean logits v_c (Eq. 8), [classes, classes].
        r: Averaged soft labels r_c (Eq. 12), [classes, classes].
        known: Mask of the classes that any client condenses; the other rows of ``v`` and ``r`` are zero.
    """

    classes: Mapping[str, Tensor]
    v: Tensor
    r: Tensor
    known: Tensor


class Knowledge(Phase):
    """Down: the global model. Up: V_k and R_k of the classes the client condenses."""

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
            checks=(ascending_classes, _rows_are_distributions),
        )

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return next(iter(self.work([ask], [client], engine)))

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        method = self.method
        model = method.build_model(Key(0))  # once for all: building takes longer than the forward pass
        for ask, client in zip(asks, clients, strict=True):
            model.load_state_dict(ask.tensors)
            logits = predict(model, client.shard.images, method.task, engine)
            v, _ = mean_logits(logits, client.shard.labels.to(engine.device), method.task.num_classes)
            classes = torch.tensor(method.condensed_classes(client.shard.counts), dtype=torch.int64)
            v = v.cpu()[classes]
            r = soft_labels(v, method.options.temperature)
            yield Outcome(Payload({"classes": classes, "mean_logits": v, "soft_labels": r}), scratch=ask.tensors)

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        """Average V_k and R_k by class."""
        shared = [reply.tensors for reply in replies.values()]
        num_classes = self.method.task.num_classes
        v, known = average_over_owners([(s["classes"], s["mean_logits"]) for s in shared], num_classes)
        r, _ = average_over_owners([(s["classes"], s["soft_labels"]) for s in shared], num_classes)
        classes = {name: reply.tensors["classes"] for name, reply in replies.items()}
        return replace(server, scratch=GlobalKnowledge(classes, v, r, known))


class Condense(CondensePhase):
    """Minimise L_loc = L_DM + lambda_loc * L_CDC (Eq. 10).

    Down: the rows of V for the client's classes. The client still has the global model, as scratch of ``knowledge``.
    """

    ratio_of = "cdc"

    def ask(self, server: ServerState, client_id: str) -> Payload:
        knowledge: GlobalKnowledge = server.scratch
        classes = knowledge.classes[client_id]
        return Payload({"classes": classes, "v": knowledge.v[classes]}, {"resample_key": resample_key(server)})

    def classes_asked(self, ask: Payload) -> Tensor:
        return ask.tensors["classes"]

    def global_model(self, ask: Payload, client: Client) -> Tensors:
        return client.scratch

    def networks(self, ask: Payload, weights: Tensors, fresh: FreshWeights, key: Key, backbone: Backbone) -> Networks:
        options = self.method.options
        if options.resampling == "blend":
            return Blended(weights, fresh, key, options.gamma)
        return Perturbed(weights, fresh, key, options.rho)

    def targets(self, ask: Payload) -> Tensor:
        return ask.tensors["v"]

    @property
    def method_terms(self) -> tuple[Term, ...]:
        options = self.method.options
        lambda_loc = options.lambda_loc if options.cdc else None
        return (Term("dm", features_distance), Term("cdc", targets_distance, lambda_loc))


class FedAF(CondensingMethod):
    """The server minimises L_glob = L_CE + lambda_glob * L_LGKM (Eq. 14)."""

    Options = FedAFOptions
    title = "FedAF"
    family = "fedaf"
    keeps_privacy = True
    sends_knowledge = True

    @classmethod
    def private_options(cls, privacy: Any) -> Mapping[str, Any]:
        knowledge = {} if privacy.knowledge_share else {"cdc": False, "lgkm": False}
        return {**super().private_options(privacy), **knowledge}

    @property
    def phases(self) -> tuple[Phase, ...]:
        if self.privacy is None:
            return (Knowledge(self), Condense(self))
        condense = PrivateCondense(Condense(self))
        if not self.privacy.knowledge_share:
            return (condense,)
        labels = partial(soft_labels, temperature=self.options.temperature)
        return (PrivateKnowledge(Knowledge(self), condense, labels), condense)

    def server_loss(self, model: nn.Module, server: ServerState, engine: Engine) -> Loss | None:
        options, task = self.options, self.task
        if not options.lgkm or options.lambda_glob == 0 or server.round < options.lgkm_from_round:
            return None
        knowledge: GlobalKnowledge = server.scratch
        known = knowledge.known.to(engine.device)
        log_r = knowledge.r.to(engine.device).clamp(min=torch.finfo(torch.float32).tiny).log()
        everything: list[Tensor] = []
        if options.lgkm_students == "all":
            everything = [t.to(engine.device) for t in self.condensed_data(server)]

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor | Weighted]:
            logits = model(images)
            ce = F.cross_entropy(logits, labels)
            if everything:
                images, labels = everything
                logits = model(normalise(images, task.mean, task.std))
            v, counts = mean_logits(logits, labels, task.num_classes)
            log_t = torch.log_softmax(v / options.temperature, dim=-1)
            lgkm = knowledge_matching(log_r, log_t, known & (counts > 0), reduction=options.lgkm_reduction)
            return {"ce": ce, "lgkm": Weighted(lgkm, options.lambda_glob)}

        return loss

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        condensing = super().workload(counts)
        samples = sum(sum(of_client) for of_client in counts.values())
        return replace(condensing, forward=condensing.forward + samples)


def _rows_are_distributions(tensors: Tensors) -> None:
    if bool(((tensors["soft_labels"].sum(1) - 1).abs() > 1e-3).any()):
        raise Refused("every row of soft_labels must sum to 1", code="FEDAF-REPLY-SOFT-LABELS")
