"""The heads of a network: the Linear layers that nothing but its logits follows."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad


def heads(model: nn.Module, images: Tensor) -> list[str]:
    """Return the names of the Linear layers that the logits depend on and no later Linear layer does, in order.

    Args:
        model: The network, which returns logits.
        images: Images for one forward pass.
    """
    calls: list[tuple[str, Tensor, Tensor]] = []

    def hook(name: str) -> Any:
        def remember(_layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
            calls.append((name, (*inputs, *named.values())[0], output))

        return remember

    layers = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear))
    handles = [layer.register_forward_hook(hook(name), with_kwargs=True) for name, layer in layers]
    try:
        with torch.enable_grad():
            logits = model(images.detach().clone().requires_grad_())
    finally:
        for handle in handles:
            handle.remove()
    used = [(name, features, output) for name, features, output in calls if _follows(logits, output)]
    found = [name for name, _, output in used if not any(_follows(features, output) for _, features, _ in used)]
    return list(dict.fromkeys(found))


def _follows(later: Any, earlier: Tensor) -> bool:
    """Whether ``later`` was computed from ``earlier``."""
    if not isinstance(later, Tensor) or not later.requires_grad or not earlier.requires_grad:
        return False
    return grad(later.sum(), earlier, retain_graph=True, allow_unused=True)[0] is not None
