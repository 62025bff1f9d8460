"""The network of each condensation step: the global model blended with a fresh one, or moved at random."""

from typing import Protocol

import torch
from torch import Tensor

from fedaf.models.backbone import Backbone
from fedaf.models.statistics import STATISTICS
from fedaf.models.weights import FreshWeights
from fedaf.protocol import Key, Tensors


class Networks(Protocol):
    """One network per step. ``weights`` may run inside a captured CUDA graph; ``draw`` runs before it."""

    def draw(self, step: int) -> None:
        """Draw the random numbers of a step."""

    def weights(self) -> Tensors:
        """Return the weights of the current network, computed from tensors that keep their address."""


class Blended:
    """Model re-sampling (Eq. 17): w <- gamma w + (1 - gamma) w~, with fresh parameters w~ at every step.

    Running statistics stay those of w.
    """

    def __init__(self, weights: Tensors, fresh: FreshWeights, key: Key, gamma: float) -> None:
        self._weights, self._fresh, self._key, self._gamma = weights, fresh, key, gamma
        self._vector = fresh.flat(weights)

    def draw(self, step: int) -> None:
        self._fresh.draw(self._key.derive(step))

    def weights(self) -> dict[str, Tensor]:
        blend = torch.lerp(self._fresh.vector(), self._vector, self._gamma)
        return {**self._weights, **self._fresh.named(blend)}


class Fixed:
    """The same network at every step."""

    def __init__(self, weights: Tensors) -> None:
        self._weights = weights

    def draw(self, step: int) -> None:
        return None

    def weights(self) -> Tensors:
        return self._weights


class Fresh:
    """A fresh network at every step, with running statistics estimated for it on ``images``."""

    def __init__(self, weights: Tensors, fresh: FreshWeights, key: Key, backbone: Backbone, images: Tensor) -> None:
        self._weights, self._fresh, self._key = weights, fresh, key
        self._backbone, self._images = backbone, images.to(fresh.vector())

    def draw(self, step: int) -> None:
        self._fresh.draw(self._key.derive(step))

    def weights(self) -> dict[str, Tensor]:
        network = {**self._weights, **self._fresh.named(self._fresh.vector())}
        return {**network, **self._backbone.statistics(network, self._images)}


class Recurring(Fresh):
    """Fresh networks that are drawn again and again: the statistics of each are estimated once."""

    def __init__(self, weights: Tensors, fresh: FreshWeights, key: Key, backbone: Backbone, images: Tensor) -> None:
        super().__init__(weights, fresh, key, backbone, images)
        self._estimated: dict[int, dict[str, Tensor]] = {}
        self._current: dict[str, Tensor] = {}  # tensors that keep their address

    def draw(self, step: int) -> None:
        super().draw(step)
        if step not in self._estimated:
            network = super().weights()
            self._estimated[step] = {name: t for name, t in network.items() if name.endswith(STATISTICS)}
        self._current = self._current or {name: t.clone() for name, t in self._estimated[step].items()}
        for name, tensor in self._current.items():
            tensor.copy_(self._estimated[step][name])

    def weights(self) -> dict[str, Tensor]:
        return {**self._weights, **self._fresh.named(self._fresh.vector()), **self._current}


class Perturbed:
    """FedDM's perturbation: w <- w + rho g / ||g||, with a new Gaussian direction g at every step.

    Running statistics stay those of w.
    """

    def __init__(self, weights: Tensors, fresh: FreshWeights, key: Key, rho: float) -> None:
        self._weights, self._fresh, self._key, self._rho = weights, fresh, key, rho
        self._vector = fresh.flat(weights)
        self.draw(0)

    def draw(self, step: int) -> None:
        self._direction = self._fresh.gaussian(self._key.derive(step))

    def weights(self) -> dict[str, Tensor]:
        moved = self._vector + self._rho / self._direction.norm() * self._direction
        return {**self._weights, **self._fresh.named(moved)}
