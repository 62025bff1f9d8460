"""FedDM: Xiong et al., "FedDM: Iterative Distribution Matching for Communication-Efficient Federated Learning"
(CVPR 2023), as the baseline of the FedAF paper.

Unlike FedAF, clients share no knowledge: images are condensed with distribution matching only, and the server trains
with cross-entropy only. The network of a step is the global model, moved by a distance rho in a random direction; in
round 1 it is a fresh random network. Image gradients are clipped.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field as Option

from fedaf.common.options import with_defaults
from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Fresh, Networks, Perturbed
from fedaf.condensation.terms import Term, features_and_logits_distance
from fedaf.methods.condensing import CondensePhase, CondensingMethod, resample_key
from fedaf.methods.private import PrivateCondense
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import reference_images
from fedaf.models.weights import FreshWeights
from fedaf.protocol import Client, Key, Payload, Phase, ServerState, Tensors


@with_defaults(image_clip=2.0)
class FedDMOptions(CondensationOptions):
    """Options of FedDM."""

    rho: float = Option(5.0, ge=0, description="distance of the network of a step from the global model")
    match_logits: bool = Option(False, description="match mean logits in addition to mean features")


class Condense(CondensePhase):
    """Down: the global model. The client decides which classes it condenses."""

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model, {"resample_key": resample_key(server), "round": server.round})

    def global_model(self, ask: Payload, client: Client) -> Tensors:
        return ask.tensors

    def networks(self, ask: Payload, weights: Tensors, fresh: FreshWeights, key: Key, backbone: Backbone) -> Networks:
        if ask.scalars["round"] == 1:  # the first model is random too, but the same at every step
            return Fresh(weights, fresh, key, backbone, reference_images(self.method.task, key.derive("statistics")))
        return Perturbed(weights, fresh, key, self.method.options.rho)

    @property
    def method_terms(self) -> tuple[Term, ...]:
        if self.method.options.match_logits:
            return (Term("dm", features_and_logits_distance, real_logits=True),)
        return super().method_terms


class FedDM(CondensingMethod):
    """FedDM: condense under networks near the global model, and train on all condensed images."""

    Options = FedDMOptions
    title = "FedDM"
    keeps_privacy = True
    private_defaults: ClassVar[Mapping[str, Any]] = {
        **CondensingMethod.private_defaults,
        "image_clip": 1e6,  # the gradient has another scale
    }

    @classmethod
    def private_options(cls, privacy: Any) -> Mapping[str, Any]:
        return {**super().private_options(privacy), "match_logits": False}

    @property
    def phases(self) -> tuple[Phase, ...]:
        condense = Condense(self)
        return (condense,) if self.privacy is None else (PrivateCondense(condense),)
