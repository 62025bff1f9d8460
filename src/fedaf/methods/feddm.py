"""FedDM: Xiong et al., "FedDM: Iterative Distribution Matching for Communication-Efficient Federated Learning"
(CVPR 2023), as the baseline of the FedAF paper.

Of FedAF it lacks what peers tell each other: there is no knowledge phase, the images follow distribution matching
alone, and the server trains with cross-entropy alone. The networks of its steps are the global model moved a distance
rho in a random direction, in round 1 fresh random ones; image gradients are clipped.
"""

from pydantic import Field as Option

from fedaf.condensation.options import CondensationOptions
from fedaf.condensation.resampling import Blended, Networks, Perturbed
from fedaf.methods.condensing import CondensePhase, CondensingMethod, resample_key
from fedaf.models.weights import FreshWeights
from fedaf.protocol import Client, Key, Payload, Phase, ServerState, Tensors


class FedDMOptions(CondensationOptions):
    image_clip: float | None = Option(2.0, gt=0, description="clip each client's image gradient to this norm")
    rho: float = Option(5.0, ge=0, description="distance of a step's network from the global model")
    match_logits: bool = Option(False, description="match the means of logits too, beside those of features")


class Condense(CondensePhase):
    """Down: the global model. The client says which classes it condensed."""

    def ask(self, server: ServerState, client_id: str) -> Payload:
        return Payload(server.model, {"resample_key": resample_key(server), "round": server.round})

    def global_model(self, ask: Payload, client: Client) -> Tensors:
        return ask.tensors

    def networks(self, ask: Payload, weights: Tensors, fresh: FreshWeights, key: Key) -> Networks:
        if ask.scalars["round"] == 1:  # the first model is as random as a fresh one, but always the same
            return Blended(weights, fresh, key, gamma=0)
        return Perturbed(weights, fresh, key, self.method.options.rho)

    @property
    def match_logits(self) -> bool:
        return bool(self.method.options.match_logits)


class FedDM(CondensingMethod):
    Options = FedDMOptions

    @property
    def phases(self) -> tuple[Phase, ...]:
        return (Condense(self),)
