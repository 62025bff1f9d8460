"""The memory that a network needs for one image, measured with a forward pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_FEWEST_COPIES = 2  # lower bound: the image, and one result of the arithmetic before the classifier


def activation_bytes(model: nn.Module, example: Tensor) -> int:
    """Return the bytes that a backward pass keeps for one image.

    This is the size of all layers' outputs, or of what autograd saves if that is more, as in a network that computes
    outside of layers.
    """
    outputs: list[int] = []
    saved = {p.untyped_storage().data_ptr(): 0 for p in model.parameters()}  # weights are not counted

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved.setdefault(storage.data_ptr(), storage.nbytes())
        return tensor

    saving = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    with _each_layer(model, lambda _inputs, output: outputs.append(output)), saving:
        kept = model(example)  # kept alive while counting: freed memory would be reused and counted once
    del kept
    return max(sum(outputs), sum(saved.values()), _FEWEST_COPIES * _bytes(example))


@torch.no_grad()
def pass_bytes(model: nn.Module, example: Tensor) -> int:
    """Return the bytes that a pass without gradients needs for one image: the largest layer's input and output."""
    sizes = [_FEWEST_COPIES * _bytes(example)]
    with _each_layer(model, lambda inputs, output: sizes.append(inputs + output)):
        model(example)
    return max(sizes)


@contextmanager
def _each_layer(model: nn.Module, count: Callable[[int, int], None]) -> Iterator[None]:
    """Call ``count`` with the bytes of each layer's inputs and output within the block."""

    def hook(_module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        count(sum(map(_bytes, inputs)), _bytes(output))

    handles = [m.register_forward_hook(hook) for m in model.modules() if not list(m.children())]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _bytes(value: Any) -> int:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else 0
