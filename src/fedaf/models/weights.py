"""Fresh weights for any module, from a key alone."""

import copy

import torch
from torch import Tensor, nn

from fedaf.protocol import Key


def initialise(model: nn.Module, key: Key) -> nn.Module:
    """Reset every layer of ``model`` in place with its own scheme, children before their parents."""
    devices = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(key.value)
        for device in devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(key.value)
        for module in reversed(list(model.modules())):
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return model


class FreshWeights:
    """The parameters of newly initialised networks of one architecture, one network for each key."""

    def __init__(self, model: nn.Module) -> None:
        self._scratch = copy.deepcopy(model).requires_grad_(False)

    def __call__(self, key: Key) -> dict[str, Tensor]:
        """Parameters only, no buffers; valid until the next call."""
        return dict(initialise(self._scratch, key).named_parameters())

    def gaussian(self, key: Key) -> dict[str, Tensor]:
        """A standard normal vector in the space of the parameters."""
        parameters = dict(self._scratch.named_parameters())
        generator = key.torch(next(iter(parameters.values())).device)
        return {
            name: torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype)
            for name, p in parameters.items()
        }
