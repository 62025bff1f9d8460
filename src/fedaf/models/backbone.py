"""Any network seen as features followed by a classifier."""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaf.protocol import Task, Tensors, UserError


class Backbone:
    """Calls a network with given weights and returns both its features and its logits from one forward pass.

    Features are the input of the network's last Linear in execution order, or of the layer named ``classifier``.
    """

    def __init__(self, model: nn.Module, task: Task, device: torch.device, classifier: str | None = None) -> None:
        self.model = copy.deepcopy(model).to(device).eval().requires_grad_(False)
        self._features: Tensor | None = None
        example = torch.zeros(1, *task.image_shape, device=device)
        name = classifier or _last_linear(self.model, example)
        modules = dict(self.model.named_modules())
        if name not in modules:
            raise UserError(f"the model has no layer {name!r}; its layers are {', '.join(n for n in modules if n)}.")
        modules[name].register_forward_pre_hook(self._remember)
        self.activation_bytes = _activation_bytes(self.model, example)
        if self._features is None:
            raise UserError(f"the model never calls its layer {name!r}; name the classifier it does call.")

    def __call__(self, weights: Tensors, images: Tensor, *, batch_statistics: bool = False) -> tuple[Tensor, Tensor]:
        """Features [N, D] and logits [N, classes]. Stored weights and statistics are never written: with
        ``batch_statistics`` norm layers use those of ``images``."""
        if batch_statistics:
            weights = {k: v.clone() if _is_statistic(k) else v for k, v in weights.items()}
            self.model.train()
        try:
            logits = functional_call(self.model, dict(weights), (images,))
        finally:
            self.model.eval()
        features, self._features = self._features, None
        assert features is not None
        return features.flatten(1), logits

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._features = inputs[0]


def _is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def _last_linear(model: nn.Module, example: Tensor) -> str:
    called: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda _module, _inputs, name=name: called.append(name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    with torch.no_grad():
        model(example)
    for handle in handles:
        handle.remove()
    if not called:
        raise UserError("the model has no Linear layer to take features before; end it with one.")
    return called[-1]


def _activation_bytes(model: nn.Module, example: Tensor) -> int:
    """Bytes of all layers' outputs for one image: what a backward pass must keep."""
    total = 0

    def count(_module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    leaves = [m for m in model.modules() if not list(m.children())]
    handles = [m.register_forward_hook(count) for m in leaves]
    with torch.no_grad():
        model(example)
    for handle in handles:
        handle.remove()
    return total
