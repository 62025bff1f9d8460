"""The networks that images are condensed under: the global model blended with a fresh one, or moved at random."""

from typing import Protocol

import torch
from torch import Tensor

from fedaf.models.weights import FreshWeights
from fedaf.protocol import Key, Tensors


class Networks(Protocol):
    """One network for each step. Drawing it is apart from computing its weights, which an engine can then repeat."""

    def draw(self, step: int) -> None:
        """Choose the network of a step."""

    def weights(self) -> Tensors:
        """The weights of the network chosen, computed from tensors that stay where they are."""


class Blended:
    """w <- gamma w + (1 - gamma) w~ for every parameter, w~ fresh at every step; running statistics stay."""

    def __init__(self, weights: Tensors, fresh: FreshWeights, key: Key, gamma: float) -> None:
        self._weights, self._fresh, self._key, self._gamma = weights, fresh, key, gamma
        self._vector = fresh.flat(weights)

    def draw(self, step: int) -> None:
        self._fresh.draw(self._key.derive(step))

    def weights(self) -> dict[str, Tensor]:
        blend = torch.lerp(self._fresh.vector(), self._vector, self._gamma)
        return {**self._weights, **self._fresh.named(blend)}


class Perturbed:
    """w <- w + rho g / ||g||, g a new random direction in the space of all parameters; running statistics stay."""

    def __init__(self, weights: Tensors, fresh: FreshWeights, key: Key, rho: float) -> None:
        self._weights, self._fresh, self._key, self._rho = weights, fresh, key, rho
        self._vector = fresh.flat(weights)
        self.draw(0)

    def draw(self, step: int) -> None:
        self._direction = self._fresh.gaussian(self._key.derive(step))

    def weights(self) -> dict[str, Tensor]:
        moved = self._vector + self._rho / self._direction.norm() * self._direction
        return {**self._weights, **self._fresh.named(moved)}
