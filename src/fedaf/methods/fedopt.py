"""FedOpt: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021). FedAvgM is also in Hsu et al., "Measuring the
Effects of Non-Identical Data Distribution for Federated Visual Classification" (2019).

Clients train as in FedAvg. The server takes the mean update of the clients, Delta = sum_i (n_i / n) (y_i - x), as a
pseudo-gradient and gives it to an optimiser (Algorithms 1 and 2), with eta = global_lr and tau = adaptivity:

    FedAvgM    u <- global_momentum u + Delta                                x <- x + eta u
    FedAdam    v <- beta2 v + (1 - beta2) Delta^2                            x <- x + eta m / (sqrt(v) + tau)
    FedYogi    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)                x <- x + eta m / (sqrt(v) + tau)

with m <- beta1 m + (1 - beta1) Delta, from m = u = 0 and v = tau^2, without bias correction. Running statistics are
averaged as in FedAvg.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import Field as Option
from torch import Tensor

from fedaf.methods import averaging
from fedaf.methods.averaging import AveragingMethod, AveragingOptions, updated
from fedaf.protocol import Payload, ServerState, Tensors


class Fit(averaging.Fit):
    """As FedAvg; the server's optimiser decides how far to follow the average."""

    method: "FedOpt"

    def combine(self, server: ServerState, replies: Mapping[str, Payload]) -> ServerState:
        averaged = super().combine(server, replies)
        delta = {name: averaged.model[name].double() - server.model[name] for name in self.method.trainable}
        update, memory = self.method.step(delta, server.memory)
        return replace(averaged, model={**averaged.model, **updated(server.model, update)}, memory=memory)


class FedOpt(AveragingMethod):
    """FedAvg with an optimiser on the server."""

    Fit = Fit

    @abstractmethod
    def step(self, delta: Tensors, memory: Any) -> tuple[Tensors, Any]:
        """Return the update of the server's model, and what the optimiser keeps.

        Args:
            delta: The pseudo-gradient Delta, float64, by parameter.
            memory: What the optimiser kept in the last round.
        """


@dataclass(frozen=True)
class MomentumMemory:
    """What FedAvgM keeps: u, by parameter; empty is zero."""

    velocity: Tensors = field(default_factory=dict)


class FedAvgMOptions(AveragingOptions):
    """Options of FedAvgM."""

    global_lr: float = Option(1.0, gt=0, description="learning rate eta of the server's optimiser")
    global_momentum: float = Option(0.9, ge=0, lt=1, description="momentum of the server's optimiser")


class FedAvgM(FedOpt):
    """FedAvg with momentum on the server."""

    Options = FedAvgMOptions
    Memory = MomentumMemory
    title = "FedAvgM"

    def step(self, delta: Tensors, memory: MomentumMemory) -> tuple[Tensors, MomentumMemory]:
        options, old = self.options, memory.velocity
        velocity = {n: options.global_momentum * old.get(n, torch.zeros(())) + d for n, d in delta.items()}
        return {n: options.global_lr * u for n, u in velocity.items()}, MomentumMemory(_stored(velocity))


@dataclass(frozen=True)
class AdaptiveMemory:
    """What FedAdam and FedYogi keep: m and v, by parameter; empty is zero and tau^2."""

    first_moment: Tensors = field(default_factory=dict)
    second_moment: Tensors = field(default_factory=dict)


class AdaptiveOptions(AveragingOptions):
    """Options of FedAdam and FedYogi."""

    global_lr: float = Option(0.03, gt=0, description="learning rate eta of the server's optimiser")
    beta1: float = Option(0.9, ge=0, lt=1, description="decay of the server's first moment")
    beta2: float = Option(0.99, ge=0, lt=1, description="decay of the server's second moment")
    adaptivity: float = Option(
        1e-3, gt=0, description="tau, added to the root of the second moment; larger values adapt less"
    )


class Adaptive(FedOpt):
    """FedAvg with an adaptive optimiser on the server; subclasses say how the second moment changes."""

    Options = AdaptiveOptions
    Memory = AdaptiveMemory

    @abstractmethod
    def second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> Tensor:
        """Return the new v from the old one and Delta^2."""

    def step(self, delta: Tensors, memory: AdaptiveMemory) -> tuple[Tensors, AdaptiveMemory]:
        options, tau = self.options, self.options.adaptivity
        m0, v0 = torch.zeros(()), torch.tensor(tau**2)
        m = {n: options.beta1 * memory.first_moment.get(n, m0) + (1 - options.beta1) * d for n, d in delta.items()}
        v = {
            n: self.second_moment(memory.second_moment.get(n, v0), d.square(), options.beta2) for n, d in delta.items()
        }
        update = {n: options.global_lr * m[n] / (v[n].sqrt() + tau) for n in delta}
        return update, AdaptiveMemory(_stored(m), _stored(v))


class FedAdam(Adaptive):
    """FedAvg with Adam on the server."""

    title = "FedAdam"

    def second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> Tensor:
        return beta2 * v + (1 - beta2) * squared


class FedYogi(Adaptive):
    """FedAvg with Yogi on the server: the second moment moves by at most (1 - beta2) Delta^2 in a round."""

    title = "FedYogi"

    def second_moment(self, v: Tensor, squared: Tensor, beta2: float) -> Tensor:
        return v - (1 - beta2) * squared * torch.sign(v - squared)


def _stored(tensors: Tensors) -> dict[str, Tensor]:
    return {name: t.float() for name, t in tensors.items()}
