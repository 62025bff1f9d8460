"""The running statistics of BatchNorm, estimated for given weights."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedaf.protocol import Key, Task

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers of BatchNorm

_REFERENCES = 256  # images


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers that keep running statistics."""
    found = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [module for module in found if module.running_mean is not None]


@torch.no_grad()
def estimate_statistics(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Replace the running statistics of all BatchNorm layers by their means over batches of normalised images.

    Parameters and other buffers stay as they are. A model without BatchNorm is not called.
    """
    layers = batch_norms(model)
    if not layers:
        return
    for layer in layers:
        layer.reset_running_stats()
    with _training(model, layers):
        for number, batch in enumerate(batches):
            for layer in layers:  # the mean over all batches so far
                layer.momentum = 1 / (number + 1)
            model(batch)


@contextmanager
def _training(model: nn.Module, layers: list[_BatchNorm]) -> Iterator[None]:
    """Put the BatchNorm layers in train mode and all other layers in eval mode inside the block."""
    modes = {module: module.training for module in model.modules()}
    momenta = {layer: layer.momentum for layer in layers}
    model.eval()
    for layer in layers:
        layer.train()
    try:
        yield
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
        for module, training in modes.items():
            module.training = training


def reference_images(task: Task, key: Key, count: int = _REFERENCES) -> Tensor:
    """Return random images that resemble normalised photographs in their first two moments, without using any data.

    They are Gaussian, with mean 0 and standard deviation 1 in every channel. As in photographs, the amplitude falls as
    1 / f with the spatial frequency f, and the colour channels are correlated.
    """
    rows, columns = torch.fft.fftfreq(task.height), torch.fft.rfftfreq(task.width)
    frequency = (rows[:, None].square() + columns.square()).sqrt()
    amplitude = 1 / frequency.clamp(min=1 / max(task.height, task.width))
    noise = torch.randn(2, count, task.channels, task.height, task.width, generator=key.torch())
    shades, colours = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(task.height, task.width))
    images = shades[:, :1] + 0.5 * colours
    mean, std = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    normalised: Tensor = (images - mean) / std
    return normalised
