"""MOON: Li et al., "Model-Contrastive Federated Learning" (CVPR 2021).

FedAvg with a contrastive loss on features: it pulls local training towards the global model and away from the client's
own model of its last participation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, AveragingOptions, linear_classifier
from fedaf.models.backbone import Backbone, Tap
from fedaf.models.weights import initialise
from fedaf.protocol import Client, Engine, Key, Payload, Tensors, Workload
from fedaf.training.fit import Loss, Weighted

_WIDEST_HIDDEN = 256  # of the projection head


class MOONOptions(AveragingOptions):
    """Options of MOON."""

    mu: float = Option(1.0, ge=0, description="weight of the contrastive loss")
    temperature: float = Option(0.5, gt=0, description="temperature tau of the contrastive loss")
    projection_dim: int | None = Option(None, ge=1, description="output size of a projection head; unset: no head")


def model_contrast(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """Return l_con = -log(exp(cos(z, z_glob) / tau) / (exp(cos(z, z_glob) / tau) + exp(cos(z, z_prev) / tau)))."""
    similarity = torch.stack([F.cosine_similarity(z, z_global), F.cosine_similarity(z, z_previous)], 1)
    return F.cross_entropy(similarity / temperature, torch.zeros(len(z), dtype=torch.int64, device=z.device))


class Fit(averaging.Fit):
    """Minimise L_CE + mu l_con. A client keeps its trained model; in its first round it has none, and no contrast."""

    loss_names = ("ce", "con")

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss | None:
        if not client.state:
            return None
        method, options, device = self.method, self.method.options, engine.device
        frozen = Backbone(model, method.task, device, method.classifier)
        others = [
            self._in_layout_of_a_new_model(tensors, client.key, device) for tensors in (ask.tensors, client.state)
        ]
        tap = Tap(model, method.task, device, method.classifier)

        def loss(images: Tensor, labels: Tensor) -> dict[str, Tensor | Weighted]:
            ce = F.cross_entropy(model(images), labels)
            with torch.no_grad():
                z_global, z_previous = (frozen(weights, images)[0] for weights in others)
            con = model_contrast(tap.take(), z_global, z_previous, options.temperature)
            return {"ce": ce, "con": Weighted(con, options.mu)}

        return loss

    def _in_layout_of_a_new_model(self, tensors: Tensors, key: Key, device: torch.device) -> Tensors:
        """Return a model's tensors in a new model's memory layout: a checkpoint's layout would round differently."""
        model = self.method.build_model(key)
        model.load_state_dict(tensors)
        return model.to(device).state_dict()

    def keep(self, model: nn.Module, ask: Payload, client: Client) -> Tensors:
        return model.state_dict()


class MOON(AveragingMethod):
    """FedAvg with a contrastive term on features."""

    Options = MOONOptions
    Fit = Fit
    title = "MOON"

    def build_model(self, key: Key) -> nn.Module:
        model = super().build_model(key)
        if self.options.projection_dim is None:
            return model
        path, last = linear_classifier(model, self.task, super().classifier, "method.projection_dim")
        parent, _, leaf = path.rpartition(".")
        inputs, width = last.in_features, self.options.projection_dim
        hidden = min(inputs, _WIDEST_HIDDEN)
        projection = (nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, width))
        head = nn.Sequential(*projection, nn.Linear(width, last.out_features))
        setattr(model.get_submodule(parent), leaf, initialise(head, key.derive("projection")))
        return model.train()

    @property
    def classifier(self) -> str | None:
        """With a projection head its output, the input of the head's last layer, is contrasted."""
        named = super().classifier
        return f"{named}.3" if named is not None and self.options.projection_dim is not None else named

    def workload(self, counts: Mapping[str, Sequence[int]]) -> Workload:
        """Count the forward passes through the two frozen networks too."""
        plain = super().workload(counts)
        return replace(plain, forward=2 * plain.backward)
