"""Any network as features followed by a classifier."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedaf.models.footprint import activation_bytes
from fedaf.models.statistics import STATISTICS, batch_norms
from fedaf.protocol import Task, Tensors, UserError


class Backbone:
    """A network that is called with given weights and returns its features and its logits from one forward pass.

    Features are the input of the network's last Linear in execution order, or of the layer named ``classifier``.
    """

    def __init__(self, model: nn.Module, task: Task, device: torch.device, classifier: str | None = None) -> None:
        self.model = copy.deepcopy(model).to(device).eval().requires_grad_(False)
        self._batch_norms = batch_norms(self.model)
        self._tap = Tap(self.model, task, device, classifier)
        example = torch.zeros(1, *task.image_shape, device=device, requires_grad=True)
        self.activation_bytes = activation_bytes(self.model, example)
        self.num_features = self._tap.take().shape[1]

    def features(self, weights: Tensors, images: Tensor, *, batch_statistics: bool = False) -> Tensor:
        """Return the features [N, D] only; the forward pass stops there."""
        self._tap.enough = True
        try:
            self(weights, images, batch_statistics=batch_statistics)
        except _Enough:
            pass
        finally:
            self._tap.enough = False
        return self._tap.take()

    def __call__(self, weights: Tensors, images: Tensor, *, batch_statistics: bool = False) -> tuple[Tensor, Tensor]:
        """Return features [N, D] and logits [N, classes], without dropout.

        With ``batch_statistics``, BatchNorm layers use the statistics of ``images``. Given weights and running
        statistics are never changed.
        """
        if batch_statistics:
            weights = {**weights, **_copied_statistics(weights)}
            for module in self._batch_norms:
                module.train()
        try:
            logits = functional_call(self.model, dict(weights), (images,))
        finally:
            self.model.eval()
        return self._tap.take(), logits

    @torch.no_grad()
    def statistics(self, weights: Tensors, images: Tensor) -> dict[str, Tensor]:
        """Return the running statistics that BatchNorm layers have with these weights on one batch of images."""
        copied = _copied_statistics(weights)
        for module in self._batch_norms:
            module.momentum = 1.0  # of this object's own copy, whose momentum has no other use
            module.train()
        try:
            functional_call(self.model, {**weights, **copied}, (images,))
        finally:
            self.model.eval()
        self._tap.take()
        return copied


def _copied_statistics(weights: Tensors) -> dict[str, Tensor]:
    return {name: w.clone() for name, w in weights.items() if name.endswith(STATISTICS)}


class _Enough(Exception):
    """Ends a forward pass once the features are known."""


class Tap:
    """Collects the features of a network whenever it is called, in train mode too."""

    def __init__(self, model: nn.Module, task: Task, device: torch.device, classifier: str | None = None) -> None:
        training = model.training
        example = torch.zeros(1, *task.image_shape, device=device)
        with torch.no_grad():
            self.classifier = find_classifier(model.eval(), example, classifier)
        model.train(training)
        self._features: Tensor | None = None
        self.enough = False  # whether to stop the forward pass at the features
        model.get_submodule(self.classifier).register_forward_pre_hook(self._remember, with_kwargs=True)

    def take(self) -> Tensor:
        """Return the features [N, D] of the last forward pass, and release them."""
        features, self._features = self._features, None
        assert features is not None, "the network has not been called"
        return features.flatten(1)

    def _remember(self, module: nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        self._features = (*inputs, *named.values())[0]
        if self.enough:
            raise _Enough


def find_classifier(model: nn.Module, example: Tensor, classifier: str | None = None) -> str:
    """Return the name of the layer whose input are the features.

    Args:
        model: The network.
        example: Images for one forward pass.
        classifier: The name of the layer; ``None`` is the last Linear that the forward pass calls.

    Raises:
        UserError: If there is no such layer, or it is not called exactly once.
    """
    modules = dict(model.named_modules())
    if classifier is not None and classifier not in modules:
        raise _wrong_classifier(f"the model has no layer {classifier!r}", modules)
    called: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda _module, _inputs, name=name: called.append(name))
        for name, module in modules.items()
        if (isinstance(module, nn.Linear) if classifier is None else name == classifier)
    ]
    model(example)
    for handle in handles:
        handle.remove()
    if classifier is None and not called:
        raise _wrong_classifier("the model calls no Linear layer", modules)
    name = called[-1] if classifier is None else classifier
    if called.count(name) != 1:
        often = f"called {called.count(name)} times" if called else "never called"
        raise _wrong_classifier(f"the model's layer {name!r} is {often}", modules)
    return name


def _wrong_classifier(problem: str, modules: Iterable[str]) -> UserError:
    layers = ", ".join(name for name in modules if name)
    advice = f"set model.classifier to a layer that is called exactly once, one of {layers}"
    return UserError(f"{problem}; {advice}.", code="FEDAF-MODEL-CLASSIFIER")
