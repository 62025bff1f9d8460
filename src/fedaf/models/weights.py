"""Fresh weights for any module, from a key alone."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedaf.protocol import Key


def initialise(model: nn.Module, key: Key) -> nn.Module:
    """Reset every layer of ``model`` in place with its own scheme, children before their parents."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with key.seeded(device), torch.no_grad():
        for module in reversed(list(model.modules())):
            reset = reset_of(module)
            if reset is not None:
                reset()
    return model


def reset_of(module: nn.Module) -> Callable[[], object] | None:
    """How a module draws its own parameters anew; PyTorch's attention has it under a private name."""
    for name in ("reset_parameters", "_reset_parameters"):
        reset: Callable[[], object] | None = getattr(module, name, None)
        if callable(reset):
            return reset
    return None


class FreshWeights:
    """The parameters of newly initialised networks of one architecture, one network for each key."""

    def __init__(self, model: nn.Module) -> None:
        self._scratch = copy.deepcopy(model).requires_grad_(False)

    def __call__(self, key: Key) -> dict[str, Tensor]:
        """Parameters only, no buffers; valid until the next call."""
        return {name: p.detach() for name, p in initialise(self._scratch, key).named_parameters()}

    def gaussian(self, key: Key) -> dict[str, Tensor]:
        """A standard normal vector in the space of the parameters."""
        parameters = dict(self._scratch.named_parameters())
        generator = key.torch(next(iter(parameters.values())).device)
        return {
            name: torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
            for name, p in parameters.items()
        }
