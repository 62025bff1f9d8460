"""A ConvNet's block in few passes over memory, where Triton's kernels can run; off unless ``allowed``."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

if TYPE_CHECKING:
    from fedaf.models.block import Block, Frame

_FEW_INPUTS = 4  # channels up to which the convolution is computed again rather than stored
_FILTERS = (16, 32, 64, 128, 256)
_DTYPES = {torch.float32, torch.bfloat16, torch.float16}
_CAPABILITY = (8, 0)  # of a GPU that has bfloat16
_is_allowed = ContextVar("_is_allowed", default=False)


@contextmanager
def allowed() -> Iterator[None]:
    """Within it blocks may use the kernels; without, ``supports`` is false."""
    token = _is_allowed.set(True)
    try:
        yield
    finally:
        _is_allowed.reset(token)


def supports(images: Tensor, conv: nn.Conv2d, norm: nn.Module) -> bool:
    """Whether ``conv_norm_relu_pool`` can take these, here and in the present mode of ``norm``."""
    return _is_allowed.get() and _can_run(images) and _can_convolve(images, conv) and _can_normalise(images, conv, norm)


def conv_norm_relu_pool(
    images: Tensor,
    conv: nn.Conv2d,
    norm: nn.Module,
    *,
    memory_format: torch.memory_format = torch.channels_last,
) -> Tensor:
    """``avg_pool2d(relu(norm(conv(images))), 2)``, in the dtype of autocast or else of ``images``.

    In training mode the running statistics of a BatchNorm are brought up to date, as if it were called itself.
    """
    from fedaf.models.block import Frame, patches

    dtype = _compute_dtype(images)
    frame = Frame(images.shape, images.stride(), images.dtype, int(conv.padding[0]))
    options = _Options(frame, frame.pooled(conv.out_channels), dtype, memory_format)
    source, seen = images, None
    if _is_first(conv):
        seen = patches(images, conv.weight, frame, dtype)
    else:
        weight = conv.weight.to(dtype, memory_format=torch.channels_last)
        maps = images.to(dtype, memory_format=torch.channels_last)
        source = F.conv2d(maps, weight, padding=frame.padding).contiguous(memory_format=torch.channels_last)
    filters = conv.weight if seen is not None else None
    if not isinstance(norm, nn.BatchNorm2d):
        return _apply(source, seen, filters, conv.bias, None, None, None, None, options)
    mean, variance = norm.running_mean, norm.running_var
    if norm.training:
        mean, variance = _batch_statistics(source, seen, filters, conv, norm, options)
    options = options._replace(eps=norm.eps, batch_statistics=norm.training)
    return _apply(source, seen, filters, conv.bias, norm.weight, norm.bias, mean, variance, options)


class _Options(NamedTuple):
    frame: "Frame"
    shape: tuple[int, int, int, int]
    dtype: torch.dtype
    memory_format: torch.memory_format
    eps: float = 0.0
    batch_statistics: bool = False


class _NormReluPool(torch.autograd.Function):
    """All that follows a convolution, whose output is the ``source``; or, where there are ``patches`` of the source,
    the convolution of them too."""

    @staticmethod
    def forward(ctx: Any, source: Tensor, *arguments: Any) -> Tensor:
        patches, *tensors, ctx.options = arguments
        tensors = [source if patches is None else patches, *tensors]
        ctx.save_for_backward(*tensors)
        return _block(ctx.options, *tensors).pooled(ctx.options.memory_format)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        options: _Options = ctx.options
        block = _block(options, *ctx.saved_tensors)
        _, filters, bias, gamma, beta, *_ = ctx.saved_tensors
        for_source, _, for_filters, for_bias, for_gamma, for_beta, *_ = ctx.needs_input_grad
        sums = block.sums(gradient) if options.batch_statistics or for_bias else None
        totals = sums if options.batch_statistics else None
        results: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        if for_source and filters is None:
            results[0] = block.source_gradient(gradient, totals)
        elif for_source:
            results[0] = block.image_gradient(gradient, options.frame)
        if for_filters:
            results[2] = block.filter_gradient(gradient, totals).to(filters.dtype)
        if sums is not None:
            if for_bias:  # which the batch's mean takes away again
                results[3] = torch.zeros_like(bias) if totals is not None else sums[0].to(bias.dtype)
            if for_gamma:
                results[4] = sums[1].to(gamma.dtype)
            if for_beta:
                results[5] = sums[0].to(beta.dtype)
        return tuple(results)


def _apply(*arguments: Any) -> Tensor:
    pooled: Tensor = _NormReluPool.apply(*arguments)  # type: ignore[no-untyped-call]
    return pooled


def _block(
    options: _Options,
    source: Tensor,
    filters: Tensor | None,
    bias: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
) -> "Block":
    from fedaf.models.block import Block

    return Block(
        source=source,
        filters=filters,
        shape=options.shape,
        dtype=options.dtype,
        bias=None if options.batch_statistics else bias,  # nor is it in the batch's mean
        gamma=gamma,
        beta=beta,
        mean=mean,
        variance=variance,
        eps=options.eps,
    )


def _batch_statistics(
    source: Tensor,
    patches: Tensor | None,
    filters: Tensor | None,
    conv: nn.Conv2d,
    norm: nn.BatchNorm2d,
    options: _Options,
) -> Tensor:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    return _block(options, source if patches is None else patches, filters).statistics(
        bias=conv.bias,
        running_mean=norm.running_mean,
        running_variance=norm.running_var,
        batches=norm.num_batches_tracked,
        momentum=norm.momentum,
    )


def _compute_dtype(images: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else images.dtype


def _is_first(conv: nn.Conv2d) -> bool:
    return conv.in_channels <= _FEW_INPUTS


def _can_run(images: Tensor) -> bool:
    try:
        from fedaf.models import kernels
    except ImportError:  # there is no triton for this platform, or none was installed
        return False
    if kernels.INTERPRETED or not images.is_cuda:
        return kernels.INTERPRETED
    here = images.device.index == torch.cuda.current_device()  # where kernels are launched
    return here and torch.cuda.get_device_capability() >= _CAPABILITY


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
