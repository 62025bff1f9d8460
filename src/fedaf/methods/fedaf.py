"""FedAF: Wang et al., "An Aggregation-Free Federated Learning for Tackling Data Heterogeneity" (CVPR 2024).

Clients tell the server class-wise mean logits and soft labels (phase ``knowledge``), then condense their data with
the peers' mean logits as a guide (phase ``condense``); the server trains the model on the condensed images, held
to the clients' soft labels. Equations are named in ``fedaf.condensation``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.condensation.knowledge import average_over_owners, knowledge_matching, mean_logits, soft_labels
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Blended, Networks
from fedaf.data.pixels import normalise
from fedaf.methods.condensing import CondensePhase, CondensingMethod, ascending_classes, resample_key
from fedaf.models.weights import FreshWeights
from fedaf.protocol import (
    Client,
    Engine,
    Field,
    Key,
    Outcome,
    Payload,
    Phase,
    Refused,
    Schema,
    ServerState,
    Tensors,
    Workload,
)
from fedaf.training.evaluate import predict
from fedaf.training.fit import Loss

_LARGEST_LOGIT = 1e4  # one client's absurd logit would steer all its peers


class FedAFOptions(CondensationOptions):
    gamma: float = Option(0.9, ge=0, le=1, description="re-sampling: w <- gamma w + (1 - gamma) w~ at every step")
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
            checks=(ascending_classes, _rows_are_distributions),
        )

    def work_one(self, ask: Payload, client: Client, engine: Engine) -> Outcome:
        return next(iter(self.work([ask], [client], engine)))

    def work(self, asks: Sequence[Payload], clients: Sequence[Client], engine: Engine) -> Iterator[Outcome]:
        model = self.method.build_model(Key(0))  # once: making a network takes longer than asking it
        for ask, client in zip(asks, clients, strict=True):
            model.load_state_dict(ask.tensors)
            yield self._outcome(model, ask, client, engine)

    def _outcome(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Outcome:
        method = self.method
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

    def aggregate(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        shared = [reply.tensors for reply in replies.values()]
        classes = self.method.task.num_classes
        v, known = average_over_owners([(s["classes"], s["mean_logits"]) for s in shared], classes)
        r, _ = average_over_owners([(s["classes"], s["soft_labels"]) for s in shared], classes)
        owned = {f"owned:{name}": reply.tensors["classes"] for name, reply in replies.items()}
        return replace(server, scratch={**owned, "v": v, "r": r, "known": known})


class Condense(CondensePhase):
    """Down: the peers' mean logits of the client's classes; the global model is already there, as scratch of the phase
    before."""

    measures = ("loss_dm", "loss_cdc", "gradient_ratio")

    def ask(self, server: ServerState, client_id: str) -> Payload:
        classes = server.scratch[f"owned:{client_id}"]
        guide = {"classes": classes, "v": server.scratch["v"][classes]}
        return Payload(guide, {"resample_key": resample_key(server)})

    def classes_asked(self, ask: Payload) -> Tensor:
        return ask.tensors["classes"]

    def global_model(self, ask: Payload, client: Client) -> Tensors:
        return client.scratch

    def networks(self, ask: Payload, weights: Tensors, fresh: FreshWeights, key: Key) -> Networks:
        return Blended(weights, fresh, key, self.method.options.gamma)

    def targets(self, ask: Payload) -> Tensor | None:
        return ask.tensors["v"] if self.method.options.cdc else None

    @property
    def lambda_loc(self) -> float:
        return float(self.method.options.lambda_loc)

    def log(self, means: Mapping[str, float]) -> dict[str, Any]:
        losses = {"dm": means["loss_dm"], "cdc": means["loss_cdc"]}
        return {"losses": losses, "cdc_to_dm_gradient": means["gradient_ratio"]}


class FedAF(CondensingMethod):
    """The server's loss is L_glob = L_CE + lambda_glob * L_LGKM."""

    Options = FedAFOptions
    family = "fedaf"

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Knowledge(self), Condense(self))

    def server_loss(self, model: nn.Module, server: ServerState, engine: Engine) -> Loss | None:
        options, classes = self.options, self.task.num_classes
        if not options.lgkm or options.lambda_glob == 0 or server.round < options.lgkm_from_round:
            return None
        known = server.scratch["known"].to(engine.device)
        log_r = server.scratch["r"].to(engine.device).clamp(min=torch.finfo(torch.float32).tiny).log()
        everything = [t.to(engine.device) for t in self.condensed_data(server)]

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

    def finish(self, server: ServerState, engine: Engine) -> ServerState:
        server = super().finish(server, engine)
        losses = dict(server.log["losses"])
        if "lgkm" in losses:
            losses["lgkm"] /= self.options.lambda_glob  # logged as it is, like CDC, not as it is weighted
        return server.with_log(losses=losses)

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        condensing = super().workload(counts)
        samples = sum(sum(of_client) for of_client in counts.values())
        return replace(condensing, forward=condensing.forward + samples)


def _rows_are_distributions(tensors: Tensors) -> None:
    if bool(((tensors["soft_labels"].sum(1) - 1).abs() > 1e-3).any()):
        raise Refused("soft_labels must have rows that sum to 1")
