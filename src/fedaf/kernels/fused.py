"""A ConvNet block (convolution, norm, ReLU, pooling) in few passes over memory; off unless ``allowed``.

The PyTorch path that it is tested against is ``avg_pool2d(relu(norm(conv(images))), 2)``.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fedaf.kernels.available import kernels_work

if TYPE_CHECKING:
    from fedaf.kernels.blocks import Running
    from fedaf.kernels.launch import Frame, Normalisation

_FEW_INPUTS = 4  # channels up to which the convolution is recomputed instead of stored
_FILTERS = (16, 32, 64, 128, 256)
_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
_CAPABILITY = (8, 0)  # the first GPUs with bfloat16
_is_allowed = ContextVar("_is_allowed", default=False)


@contextmanager
def allowed() -> Iterator[None]:
    """Let blocks use the kernels within the ``with`` block; outside of it ``supports`` is false."""
    token = _is_allowed.set(True)
    try:
        yield
    finally:
        _is_allowed.reset(token)


def supports(images: Tensor, conv: nn.Conv2d, norm: nn.Module) -> bool:
    """Return whether ``conv_norm_relu_pool`` supports these inputs on this device, in the current mode of ``norm``."""
    return _is_allowed.get() and _can_run(images) and _can_convolve(images, conv) and _can_normalise(images, conv, norm)


def conv_norm_relu_pool(
    images: Tensor, conv: nn.Conv2d, norm: nn.Module, *, memory_format: torch.memory_format = torch.channels_last
) -> Tensor:
    """Compute ``avg_pool2d(relu(norm(conv(images))), 2)``, in the dtype of autocast if it is on, else of ``images``.

    In training mode this updates the running statistics of a BatchNorm, as a call of the layer does.
    """
    from fedaf.kernels.launch import Frame

    dtype = _compute_dtype(images)
    frame = Frame(images.shape, images.stride(), images.dtype, int(conv.padding[0]))
    call = _Call(frame, dtype, memory_format, norm)
    affine = (norm.weight, norm.bias) if isinstance(norm, nn.BatchNorm2d) else (None, None)
    if _is_first(conv):
        return _apply(_ConvNormReluPool, images, conv.weight, conv.bias, *affine, call)
    maps = images.to(dtype, memory_format=torch.channels_last)
    weight = conv.weight.to(dtype, memory_format=torch.channels_last)
    convolved = F.conv2d(maps, weight, padding=frame.padding).contiguous(memory_format=torch.channels_last)
    return _apply(_NormReluPool, convolved, conv.bias, *affine, call)


class _Call(NamedTuple):
    """The arguments of a call that have no gradient."""

    frame: "Frame"
    dtype: torch.dtype
    memory_format: torch.memory_format
    norm: nn.Module

    @property
    def of_batch(self) -> bool:
        return isinstance(self.norm, nn.BatchNorm2d) and self.norm.training

    def running(self, bias: Tensor | None) -> "Running":
        from fedaf.kernels.blocks import Running

        norm = self.norm
        assert isinstance(norm, nn.BatchNorm2d)
        return Running(bias, norm.running_mean, norm.running_var, norm.num_batches_tracked, norm.momentum)

    def normalisation(
        self, bias: Tensor | None, gamma: Tensor | None, beta: Tensor | None, batch: Tensor | None
    ) -> "Normalisation":
        """``batch`` holds the statistics of the batch, if it is normalised with them."""
        from fedaf.kernels.launch import Normalisation

        norm = self.norm
        if not isinstance(norm, nn.BatchNorm2d):
            return Normalisation(bias)
        mean, variance = (norm.running_mean, norm.running_var) if batch is None else batch
        return Normalisation(bias, gamma, beta, mean, variance, norm.eps, batch is not None)


class _NormReluPool(torch.autograd.Function):
    """Norm, ReLU and pooling of a convolution's output."""

    @staticmethod
    def forward(
        ctx: Any, source: Tensor, bias: Tensor | None, gamma: Tensor | None, beta: Tensor | None, call: _Call
    ) -> Tensor:
        from fedaf.kernels.launch import Block

        ctx.block = Block(source, (len(source), source.shape[1], source.shape[2] // 2, source.shape[3] // 2))
        batch = ctx.block.statistics(call.running(bias)) if call.of_batch else None
        ctx.normalisation = call.normalisation(bias, gamma, beta, batch)
        pooled: Tensor = ctx.block.pooled(ctx.normalisation, call.memory_format)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        for_source, for_bias, for_gamma, for_beta, _ = ctx.needs_input_grad
        block, normalisation = ctx.block, ctx.normalisation
        of_batch = normalisation.of_batch
        sums = block.sums(gradient, normalisation) if of_batch or for_bias else None
        source = block.source_gradient(gradient, normalisation, sums if of_batch else None) if for_source else None
        return source, *_vector_gradients(normalisation, sums, (for_bias, for_gamma, for_beta)), None


class _ConvNormReluPool(torch.autograd.Function):
    """Convolution of the images, norm, ReLU and pooling."""

    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        filters: Tensor,
        bias: Tensor | None,
        gamma: Tensor | None,
        beta: Tensor | None,
        call: _Call,
    ) -> Tensor:
        from fedaf.kernels.launch import FirstBlock

        block = FirstBlock.of(images, filters, call.frame, call.dtype)
        ctx.block, ctx.frame, ctx.gram = block, call.frame, block.gram() if call.of_batch else None
        batch = None if ctx.gram is None else block.statistics(ctx.gram, call.running(bias))
        ctx.normalisation = call.normalisation(bias, gamma, beta, batch)
        return block.pooled(ctx.normalisation, call.memory_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        for_images, for_filters, *for_vectors, _ = ctx.needs_input_grad
        block, normalisation = ctx.block, ctx.normalisation
        images = block.image_gradient(gradient, normalisation, ctx.frame) if for_images else None
        filters = sums = None
        if for_filters or any(for_vectors):
            filters, *sums = block.gradients(gradient, normalisation, ctx.gram)
            filters = filters.to(block.filters.dtype)
        return images, filters, *_vector_gradients(normalisation, sums, for_vectors), None


def _vector_gradients(
    normalisation: "Normalisation", sums: Sequence[Tensor] | Tensor | None, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Return the wanted gradients of bias, gamma and beta. Subtracting the batch's mean cancels the bias."""
    bias, gamma, beta = normalisation.bias, normalisation.gamma, normalisation.beta
    results: list[Tensor | None] = [None, None, None]
    if sums is not None:
        if wanted[0] and bias is not None:
            results[0] = torch.zeros_like(bias) if normalisation.of_batch else sums[0].to(bias.dtype)
        if wanted[1] and gamma is not None:
            results[1] = sums[1].to(gamma.dtype)
        if wanted[2] and beta is not None:
            results[2] = sums[0].to(beta.dtype)
    return results


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    pooled: Tensor = function.apply(*arguments)
    return pooled


def _compute_dtype(images: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else images.dtype


def _is_first(conv: nn.Conv2d) -> bool:
    return conv.in_channels <= _FEW_INPUTS


def _can_run(images: Tensor) -> bool:
    if images.is_cuda:
        current = images.device.index == torch.cuda.current_device()  # kernels are launched there
        return current and torch.cuda.get_device_capability() >= _CAPABILITY and kernels_work(images.device)
    try:
        from fedaf.kernels import blocks as kernels
    except ImportError:  # Triton is not installed, or not available for this platform
        return False
    return kernels.INTERPRETED


def _can_convolve(images: Tensor, conv: nn.Conv2d) -> bool:
    if (
        type(conv) is not nn.Conv2d
        or (conv.kernel_size, conv.stride, conv.dilation, conv.groups) != ((3, 3), (1, 1), (1, 1), 1)
        or isinstance(conv.padding, str)
        or conv.padding[0] != conv.padding[1]
        or conv.padding_mode != "zeros"
        or conv.out_channels not in _FILTERS
    ):
        return False
    if images.ndim != 4 or images.numel() == 0 or images.shape[1] != conv.in_channels:
        return False
    if {images.dtype, conv.weight.dtype, _compute_dtype(images)} - _DTYPES:
        return False
    return all(size > 0 and size % 2 == 0 for size in (side + 2 * conv.padding[0] - 2 for side in images.shape[2:]))


def _can_normalise(images: Tensor, conv: nn.Conv2d, norm: nn.Module) -> bool:
    if type(norm) is nn.Identity:
        return True
    if type(norm) is not nn.BatchNorm2d or not norm.affine or norm.running_mean is None or norm.momentum is None:
        return False
    if not torch.is_grad_enabled():
        return True
    if norm.training:
        return not (images.requires_grad and _is_first(conv))
    parameters = (conv.weight, conv.bias, norm.weight, norm.bias)
    return not any(p is not None and p.requires_grad for p in parameters)
