"""One block of a ConvNet and what can be computed of it, each in one or two launches of a kernel.

A block with ``filters`` convolves patches of its images itself, anew each time, and never writes the convolution's
output: with few input channels that is by far the largest tensor, and cheap to compute. Sums are always taken in the
same order.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedaf.models import kernels
from fedaf.models.kernels import Affine, Fixed, Images, Sizes, View

_FOLD_TILE = 256  # pixels
_FINISH_TILE = (16, 128)  # channels, programs' sums


class _Launch(NamedTuple):
    """How a kernel is launched: rows of a tile, warps of a program, and programs for each processor of the GPU, which
    go through many tiles; 0 is a program for each tile."""

    rows: int
    warps: int
    programs: int


# Measured on an H200, in bf16, for 128 filters; by kernel, and whether it convolves itself.
_LAUNCHES = {
    ("forward", False): _Launch(32, 4, 0),
    ("convolving_forward", True): _Launch(128, 8, 2),
    ("statistics", True): _Launch(128, 8, 2),
    ("statistics", False): _Launch(64, 4, 4),
    ("sums", True): _Launch(128, 8, 2),
    ("sums", False): _Launch(64, 4, 4),
    ("source_gradient", False): _Launch(32, 4, 0),
    ("filter_gradient", True): _Launch(64, 4, 2),
    ("patch_gradients", True): _Launch(64, 4, 2),
    ("unfold", True): _Launch(128, 4, 0),
}


class Frame(NamedTuple):
    """Images that a block convolves: how they lie in memory, and how they are padded."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    padding: int

    @property
    def sizes(self) -> Images:
        return Images(self.shape[2], self.shape[3], self.padding)

    def pooled(self, channels: int) -> tuple[int, int, int, int]:
        height, width = ((side + 2 * self.padding - 2) // 2 for side in self.shape[2:])
        return self.shape[0], channels, height, width


@dataclass(frozen=True, kw_only=True)
class Block:
    """``source`` is the convolution's output [N, C, H, W] without its bias or, with ``filters``, the ``patches`` of its
    images. ``mean`` and ``variance`` are those it is normalised with; without ``gamma`` it is not. Its pooled maps have
    the ``shape`` and are in ``dtype``."""

    source: Tensor
    filters: Tensor | None
    shape: tuple[int, int, int, int]
    dtype: torch.dtype
    bias: Tensor | None = None
    gamma: Tensor | None = None
    beta: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    eps: float = 0.0

    def pooled(self, memory_format: torch.memory_format) -> Tensor:
        """The block's output."""
        result = torch.empty(self.shape, dtype=self.dtype, device=self.source.device, memory_format=memory_format)
        kernel = "forward" if self.filters is None else "convolving_forward"
        self._run(kernel, affine=self._affine(), pooled=View(result, *result.stride()))
        return result

    def statistics(
        self,
        *,
        bias: Tensor | None,
        running_mean: Tensor,
        running_variance: Tensor,
        batches: Tensor,
        momentum: float,
    ) -> Tensor:
        """The mean and the variance of each channel in this batch, [2, C], without the convolution's ``bias``; the
        running ones, and the number of ``batches`` behind them, are brought up to date in place."""
        programs, channels = self._programs("statistics"), self.shape[1]
        partials, batch = self._new(2, channels, programs), self._new(2, channels)
        self._run("statistics", partials=partials, filters=self._filters())
        columns, rows = _FINISH_TILE
        kernels.finish_statistics[(channels // columns,)](
            partials,
            batch,
            bias,
            running_mean,
            running_variance,
            batches,
            programs,
            self._places,
            momentum,
            channels=channels,
            rows=rows,
            columns=columns,
        )
        return batch

    def sums(self, gradient: Tensor) -> Tensor:
        """The gradients of ``beta`` and of ``gamma``, [2, C]; without ``gamma``, of the bias and zero."""
        partials = self._new(2, self.shape[1], self._programs("sums"))
        self._run("sums", **self._backward(gradient), partials=partials, filters=self._filters())
        return partials.sum(-1)

    def source_gradient(self, gradient: Tensor, totals: Tensor | None) -> Tensor:
        """The gradient of the convolution's output, channels-last. ``totals`` are the ``sums`` where ``mean`` and
        ``variance`` are the batch's own, and so depend on it."""
        result = torch.empty_like(self.source, memory_format=torch.channels_last)
        self._run("source_gradient", **self._backward(gradient), totals=totals, result=result)
        return result

    def filter_gradient(self, gradient: Tensor, totals: Tensor | None) -> Tensor:
        """The gradient of the filters in float32, laid out as they are; ``totals`` as above."""
        assert self.filters is not None
        strides, programs = torch.empty_like(self.filters, device="meta").stride(), self._programs("filter_gradient")
        partials = self._new(self.filters.numel(), programs)
        view = View(partials, *(stride * programs for stride in strides))
        arguments = {**self._backward(gradient), "filters": self._filters(), "partials": view}
        self._run("filter_gradient", **arguments, totals=totals)
        return partials.sum(-1).as_strided(self.filters.shape, strides)

    def image_gradient(self, gradient: Tensor, frame: Frame) -> Tensor:
        """The gradient of the images, laid out as they are, where ``mean`` and ``variance`` do not depend on them."""
        number, inputs, height, width = frame.shape
        patches = self._new(9 * inputs, self._places, dtype=self.dtype)
        self._run("patch_gradients", **self._backward(gradient), filters=self._filters(), result=patches)
        result = torch.empty_strided(frame.shape, frame.stride, dtype=frame.dtype, device=gradient.device)
        pixels = number * height * width
        kernels.fold[(-(-pixels // _FOLD_TILE),)](
            patches,
            View(result, *result.stride()),
            pixels,
            self._sizes,
            frame.sizes,
            inputs=inputs,
            tile=_FOLD_TILE,
        )
        return result

    def _run(self, kernel: str, **arguments: Any) -> None:
        filters = self.filters
        if kernel == "convolving_forward":
            arguments["filters"] = self._filters()
        getattr(kernels, kernel)[(self._programs(kernel),)](
            source=self.source,
            sizes=self._sizes,
            fixed=_fixed(kernel, filters, self.shape[1], self.dtype),
            **arguments,
            num_warps=_LAUNCHES[kernel, filters is not None].warps,
            num_stages=1,
        )

    def _programs(self, kernel: str) -> int:
        rows = self._places // 4 if kernel == "forward" else self._places  # it counts windows
        tiles = -(-rows // _rows(kernel, self.filters is not None, self.shape[1]))
        each = _LAUNCHES[kernel, self.filters is not None].programs
        if kernels.INTERPRETED:
            return min(tiles, 2) if each else tiles
        processors: int = torch.cuda.get_device_properties(self.source.device).multi_processor_count
        return min(tiles, each * processors) if each else tiles

    @property
    def _places(self) -> int:
        number, _, height, width = self.shape
        return 4 * number * height * width

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self._places, *self.shape[2:])

    def _filters(self) -> View | None:
        return None if self.filters is None else View(self.filters, *self.filters.stride())

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.source.new_empty(shape, dtype=dtype)

    def _affine(self) -> Affine:
        return Affine(self.bias, self.gamma, self.beta, self.mean, self.variance, self.eps)

    def _backward(self, gradient: Tensor) -> dict[str, Any]:
        return {"affine": self._affine(), "gradient": gradient.contiguous(memory_format=torch.channels_last)}


def patches(images: Tensor, filters: Tensor, frame: Frame, dtype: torch.dtype) -> Tensor:
    """What the filters see of the images at each place of the convolution's output, [places, K], the four places of a
    pooling window one after the other."""
    number, channels, height, width = frame.pooled(len(filters))
    fixed = _fixed("unfold", filters, channels, dtype)
    places = 4 * number * height * width
    result = images.new_empty((places, fixed.columns), dtype=dtype)
    kernels.unfold[(-(-places // fixed.rows),)](
        View(images, *images.stride()),
        result,
        Sizes(places, height, width),
        frame.sizes,
        fixed=fixed,
        num_warps=_LAUNCHES["unfold", True].warps,
    )
    return result


def _fixed(kernel: str, filters: Tensor | None, channels: int, dtype: torch.dtype) -> Fixed:
    inputs = 0 if filters is None else filters.shape[1]
    columns = 16 if inputs < 2 else 32 if inputs < 4 else 64
    return Fixed(inputs, columns, channels, _rows(kernel, filters is not None, channels), kernels.DTYPES[dtype])


def _rows(kernel: str, first: bool, channels: int) -> int:
    """A tile for more filters has fewer rows, so that a program has registers for both."""
    if kernels.INTERPRETED:
        return 16
    rows = _LAUNCHES[kernel, first].rows
    return rows if kernel == "unfold" else min(128, max(16, rows * 128 // channels))
