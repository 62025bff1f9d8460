"""One block of a ConvNet and what can be computed of it, each in one or two launches of a kernel.

A block with ``filters`` convolves its images itself, anew each time, and never writes the convolution's output: with
few input channels that is by far the largest tensor, and cheap to compute. Sums are always taken in the same order.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedaf.models import kernels
from fedaf.models.kernels import Affine, Fixed, Sizes, View

_FOLD_TILE = 256  # pixels
_FINISH_TILE = (128, 16)  # programs' sums, channels


@dataclass(frozen=True, kw_only=True)
class Block:
    """``source`` is the convolution's output [N, C, H, W] without its bias or, with ``filters``, the images. ``mean``
    and ``variance`` are those it is normalised with; without ``gamma`` it is not. Results are in ``dtype``."""

    source: Tensor
    filters: Tensor | None
    padding: int
    dtype: torch.dtype
    bias: Tensor | None = None
    gamma: Tensor | None = None
    beta: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    eps: float = 0.0

    def pooled(self, memory_format: torch.memory_format) -> Tensor:
        """The block's output."""
        result = torch.empty(
            self._pooled_shape, dtype=self.dtype, device=self.source.device, memory_format=memory_format
        )
        kernels.forward[(self._tiles if self.filters is None else self._programs(4),)](
            **self._arguments(),
            affine=self._affine(),
            pooled=View(result, *result.stride()),
            unroll=4 if self.filters is None else 1,  # four convolutions at once would need too many registers
            num_warps=8,
            num_stages=1,
        )
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
        programs = self._programs(4)
        partials = self._new(programs, 2, self._channels)
        kernels.statistics[(programs,)](**self._arguments(), partials=partials, num_warps=8, num_stages=1)
        batch = self._new(2, self._channels)
        rows, columns = _FINISH_TILE
        kernels.finish_statistics[(self._channels // columns,)](
            partials,
            batch,
            bias,
            running_mean,
            running_variance,
            batches,
            programs,
            4 * self._positions,
            momentum,
            channels=self._channels,
            rows=rows,
            columns=columns,
        )
        return batch

    def sums(self, gradient: Tensor) -> Tensor:
        """The gradients of ``beta`` and of ``gamma``, [2, C]; without ``gamma``, of the bias and zero."""
        programs = self._programs(4)
        partials = self._new(programs, 2, self._channels)
        kernels.sums[(programs,)](
            **self._arguments(), **self._backward(gradient), partials=partials, num_warps=8, num_stages=1
        )
        return partials.sum(0)

    def source_gradient(self, gradient: Tensor, totals: Tensor | None) -> Tensor:
        """The gradient of the convolution's output, channels-last. ``totals`` are the ``sums`` where ``mean`` and
        ``variance`` are the batch's own, and so depend on it."""
        result = torch.empty_like(self.source, memory_format=torch.channels_last)
        kernels.source_gradient[(self._tiles,)](
            **self._arguments(),
            **self._backward(gradient),
            totals=totals,
            result=View(result, *result.stride()),
            num_warps=8,
            num_stages=1,
        )
        return result

    def filter_gradient(self, gradient: Tensor, totals: Tensor | None) -> Tensor:
        """The gradient of the filters in float32, laid out as they are; ``totals`` as above."""
        assert self.filters is not None
        strides = torch.empty_like(self.filters, device="meta").stride()
        programs = self._programs(2)
        partials = self._new(programs, self.filters.numel())
        kernels.filter_gradient[(programs,)](
            **self._arguments(),
            **self._backward(gradient),
            totals=totals,
            partials=View(partials, *strides),
            num_warps=8,
            num_stages=1,
        )
        return partials.sum(0).as_strided(self.filters.shape, strides)

    def image_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the images, laid out as they are, where ``mean`` and ``variance`` do not depend on them."""
        number, inputs, height, width = self.source.shape
        arguments = self._arguments()
        patches = self._new(9 * inputs, 4, self._positions, dtype=self.dtype)
        kernels.patch_gradients[(self._programs(2),)](
            **arguments, **self._backward(gradient), result=patches, num_warps=8, num_stages=1
        )
        result = torch.empty_like(self.source)
        pixels = number * height * width
        kernels.fold[(-(-pixels // _FOLD_TILE),)](
            patches,
            View(result, *result.stride()),
            self._positions,
            pixels,
            arguments["sizes"],
            inputs=inputs,
            tile=_FOLD_TILE,
        )
        return result

    @property
    def _channels(self) -> int:
        return self.source.shape[1] if self.filters is None else self.filters.shape[0]

    @property
    def _pooled_shape(self) -> tuple[int, int, int, int]:
        number, _, height, width = self.source.shape
        grow = 0 if self.filters is None else 2 * self.padding - 2
        return number, self._channels, (height + grow) // 2, (width + grow) // 2

    @property
    def _positions(self) -> int:
        number, _, height, width = self._pooled_shape
        return number * height * width

    @property
    def _tile(self) -> int:
        """Small enough for two programs of 256 threads on each processor to have all their registers."""
        return 16 if kernels.INTERPRETED else min(64, 4096 // self._channels)

    @property
    def _tiles(self) -> int:
        return -(-self._positions // self._tile)

    def _programs(self, for_each_processor: int) -> int:
        """Where each works on many tiles: what it loads or sums up once is for all of them."""
        if kernels.INTERPRETED:
            return min(self._tiles, 2)
        processors: int = torch.cuda.get_device_properties(self.source.device).multi_processor_count
        return min(self._tiles, for_each_processor * processors)

    def _new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return self.source.new_empty(shape, dtype=dtype)

    def _affine(self) -> Affine:
        return Affine(self.bias, self.gamma, self.beta, self.mean, self.variance, self.eps)

    def _arguments(self) -> dict[str, Any]:
        inputs = 0 if self.filters is None else self.filters.shape[1]
        columns = 16 if inputs < 2 else 32 if inputs < 4 else 64
        _, _, pooled_height, pooled_width = self._pooled_shape
        _, _, height, width = self.source.shape
        return {
            "source": View(self.source, *self.source.stride()),
            "filters": None if self.filters is None else View(self.filters, *self.filters.stride()),
            "positions": self._positions,
            "sizes": Sizes(pooled_height, pooled_width, height, width, self.padding),
            "fixed": Fixed(inputs, columns, self._channels, self._tile, kernels.DTYPES[self.dtype]),
        }

    def _backward(self, gradient: Tensor) -> dict[str, Any]:
        return {"affine": self._affine(), "gradient": View(gradient, *gradient.stride())}
