"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020).

FedAvg with a proximal term that keeps local training close to the global model.
"""

import torch
from pydantic import Field as Option
from torch import Tensor, nn

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, AveragingOptions, parameters_of
from fedaf.protocol import Client, Engine, Payload, Tensors
from fedaf.training.fit import Loss, Weighted, cross_entropy


class FedProxOptions(AveragingOptions):
    """Options of FedProx."""

    mu: float = Option(0.001, ge=0, description="weight of the proximal term mu / 2 ||w - w_g||^2")


def proximal(model: nn.Module, anchor: Tensors) -> Tensor:
    """Return ||w - w_g||^2 over the trainable parameters; ``anchor`` is w_g."""
    return torch.stack([(p - anchor[name]).square().sum() for name, p in model.named_parameters()]).sum()


class Fit(averaging.Fit):
    """Minimise L_CE + mu / 2 ||w - w_g||^2."""

    loss_names = ("ce", "prox")

    def loss(self, model: nn.Module, ask: Payload, client: Client, engine: Engine) -> Loss:
        anchor, ce = parameters_of(model, ask.tensors), cross_entropy(model)
        weight = self.method.options.mu / 2
        return lambda images, labels: {**ce(images, labels), "prox": Weighted(proximal(model, anchor), weight)}


class FedProx(AveragingMethod):
    """FedAvg with the proximal term mu / 2 ||w - w_g||^2."""

    Options = FedProxOptions
    Fit = Fit
    title = "FedProx"
