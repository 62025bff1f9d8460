"""Launches of the block kernels: forward pass, statistics and gradients of a ConvNet block.

Sums are always computed in the same order, so results repeat.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedaf.kernels import blocks as kernels
from fedaf.kernels import patches as patch_kernels
from fedaf.kernels.blocks import INTERPRETED, Affine, Running, Sizes, View
from fedaf.kernels.patches import DTYPES, Images

_FOLD_TILE = 256  # pixels
_FINISH_TILE = (16, 128)  # channels, programs' sums


class _Launch(NamedTuple):
    """How a kernel is launched; tuned on an H200 in bf16 with 128 filters.

    Args:
        rows: Rows of a tile.
        warps: Warps of a program.
        programs: Programs per multiprocessor, each of which loops over many tiles; 0 means one program per tile.
    """

    rows: int
    warps: int
    programs: int

    def rows_for(self, channels: int) -> int:
        """Return the rows of a tile: fewer for more filters, to limit the registers of a program."""
        return 16 if INTERPRETED else min(128, max(16, self.rows * 128 // channels))

    def grid(self, count: int, channels: int, device: torch.device) -> int:
        tiles = -(-count // self.rows_for(channels))
        if not self.programs:
            return tiles
        processors: int = 2 if INTERPRETED else torch.cuda.get_device_properties(device).multi_processor_count
        return min(tiles, self.programs * processors)


@dataclass(frozen=True)
class Normalisation:
    """BatchNorm of each channel with this ``mean`` and ``variance``, or only a bias if ``gamma`` is ``None``.

    ``of_batch`` says that mean and variance were computed from the batch, so gradients flow through them.
    """

    bias: Tensor | None = None
    gamma: Tensor | None = None
    beta: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    eps: float = 0.0
    of_batch: bool = False

    def affine(self) -> Affine:
        bias = None if self.of_batch else self.bias  # the batch's mean does not include it either
        return Affine(bias, self.gamma, self.beta, self.mean, self.variance, self.eps)


@dataclass(frozen=True)
class Block:
    """Everything after the convolution of a block.

    Args:
        source: The convolution's output [N, C, H, W] without its bias, channels-last.
        shape: The shape of the pooled maps.
    """

    source: Tensor
    shape: tuple[int, int, int, int]

    launches: ClassVar = {
        "forward": _Launch(64, 4, 0),
        "statistics": _Launch(128, 4, 2),
        "sums": _Launch(128, 4, 2),
        "source_gradient": _Launch(32, 4, 0),
    }

    def pooled(self, normalisation: Normalisation, memory_format: torch.memory_format) -> Tensor:
        """Return the block's output."""
        result = _maps(self.source, self.shape, memory_format)
        arguments = {"affine": normalisation.affine(), "pooled": View(result, *result.stride())}
        self._run("forward", self._places // 4, **arguments)
        return result

    def statistics(self, running: Running) -> Tensor:
        """Return mean and variance of each channel in this batch, [2, C], and update the running ones."""
        launch, channels = self.launches["statistics"], self.shape[1]
        programs = launch.grid(self._places, channels, self.source.device)
        partials, batch = _floats(self.source, 2, channels, programs), _floats(self.source, 2, channels)
        self._run("statistics", self._places, partials=partials)
        columns, rows = _FINISH_TILE
        kernels.finish_statistics[(channels // columns,)](
            partials, batch, running, programs, self._places, channels=channels, rows=rows, columns=columns
        )
        return batch

    def sums(self, gradient: Tensor, normalisation: Normalisation) -> Tensor:
        """Return the gradients of beta and gamma, [2, C]; without gamma, those of the bias and zero."""
        programs = self.launches["sums"].grid(self._places, self.shape[1], self.source.device)
        partials = _floats(self.source, 2, self.shape[1], programs)
        self._run("sums", self._places, **_backward(gradient, normalisation), partials=partials)
        return partials.sum(-1)

    def source_gradient(self, gradient: Tensor, normalisation: Normalisation, totals: Tensor | None) -> Tensor:
        """Return the gradient of ``source``. ``totals`` are the ``sums``, given if the statistics are of the batch."""
        result = torch.empty_like(self.source)
        arguments = {**_backward(gradient, normalisation), "totals": totals, "result": result}
        self._run("source_gradient", self._places, **arguments)
        return result

    def _run(self, kernel: str, count: int, **arguments: Any) -> None:
        launch, channels = self.launches[kernel], self.shape[1]
        grid = (launch.grid(count, channels, self.source.device),)
        arguments |= {"source": self.source, "sizes": Sizes(self._places, *self.shape[2:])}
        fixed = kernels.Fixed(channels, launch.rows_for(channels))
        getattr(kernels, kernel)[grid](**arguments, fixed=fixed, num_warps=launch.warps, num_stages=1)

    @property
    def _places(self) -> int:
        return 4 * self.shape[0] * self.shape[2] * self.shape[3]


class Frame(NamedTuple):
    """Memory layout and padding of the images that a first block convolves."""

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


@dataclass(frozen=True)
class FirstBlock:
    """A whole block, including its convolution of image patches.

    Args:
        patches: The patches of the images; see ``fedaf.kernels.patches``.
        filters: The filters of the convolution.
        shape: The shape of the pooled maps.
    """

    patches: Tensor
    filters: Tensor
    shape: tuple[int, int, int, int]

    launches: ClassVar = {
        "unfold": _Launch(128, 4, 0),
        "pool": _Launch(32, 4, 4),
        "gram": _Launch(128, 4, 2),
        "gradient_products": _Launch(64, 4, 2),
        "patch_gradients": _Launch(64, 4, 2),
    }

    @classmethod
    def of(cls, images: Tensor, filters: Tensor, frame: Frame, dtype: torch.dtype) -> "FirstBlock":
        shape = frame.pooled(len(filters))
        places = 4 * shape[0] * shape[2] * shape[3]
        block = cls(images.new_empty((places, _columns(filters)), dtype=dtype), filters, shape)
        block._run("unfold", places, images=View(images, *images.stride()), frame=frame.sizes)
        return block

    def pooled(self, normalisation: Normalisation, memory_format: torch.memory_format) -> Tensor:
        """Return the block's output."""
        result = _maps(self.patches, self.shape, memory_format)
        arguments = {"filters": self._filters(), "affine": normalisation.affine()}
        self._run("pool", self._places // 4, **arguments, pooled=View(result, *result.stride()))
        return result

    def gram(self) -> Tensor:
        """Return the products of all patches with each other, [K, K]."""
        columns = self.patches.shape[1]
        programs = self.launches["gram"].grid(self._places, self.shape[1], self.patches.device)
        partials = _floats(self.patches, columns, columns, programs)
        self._run("gram", self._places, partials=partials)
        return partials.sum(-1)

    def statistics(self, gram: Tensor, running: Running) -> Tensor:
        """Return mean and variance of each channel in this batch, [2, C], and update the running ones."""
        batch = _floats(self.patches, 2, self.shape[1])
        self._finish("finish_gram", products=gram, filters=self._filters(), batch=batch, running=running)
        return batch

    def gradients(
        self, gradient: Tensor, normalisation: Normalisation, gram: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the filters (in their layout), of beta and of gamma, for batch statistics.

        Without gamma, these are the gradients of the filters and of the bias; ignore the third.
        """
        channels, columns = self.shape[1], self.patches.shape[1]
        windows = self._places // 4
        programs = self.launches["gradient_products"].grid(windows, channels, self.patches.device)
        partials = _floats(self.patches, columns, channels, programs)
        arguments = {**_backward(gradient, normalisation), "filters": self._filters()}
        self._run("gradient_products", windows, **arguments, partials=partials)
        result = torch.empty_like(self.filters, dtype=torch.float32)
        vectors = _floats(self.patches, 2, channels)
        inputs = {
            "products": partials.sum(-1),
            "gram": gram,
            "filters": self._filters(),
            "affine": normalisation.affine(),
        }
        self._finish("finish_gradients", **inputs, result=View(result, *result.stride()), vectors=vectors)
        return result, vectors[0], vectors[1]

    def image_gradient(self, gradient: Tensor, normalisation: Normalisation, frame: Frame) -> Tensor:
        """Return the gradient of the images (in their layout), if the statistics do not depend on them."""
        number, inputs, height, width = frame.shape
        columns = self.patches.new_empty((9 * inputs, self._places))
        arguments = {**_backward(gradient, normalisation), "filters": self._filters()}
        self._run("patch_gradients", self._places // 4, **arguments, result=columns)
        result = torch.empty_strided(frame.shape, frame.stride, dtype=frame.dtype, device=gradient.device)
        pixels = number * height * width
        patch_kernels.fold[(-(-pixels // _FOLD_TILE),)](
            columns, View(result, *result.stride()), pixels, self._sizes, frame.sizes, inputs=inputs, tile=_FOLD_TILE
        )
        return result

    def _run(self, kernel: str, count: int, **arguments: Any) -> None:
        launch, channels = self.launches[kernel], self.shape[1]
        grid = (launch.grid(count, channels, self.patches.device),)
        arguments |= {"patches": self.patches, "sizes": self._sizes, "fixed": self._fixed(launch.rows_for(channels))}
        getattr(patch_kernels, kernel)[grid](**arguments, num_warps=launch.warps, num_stages=1)

    def _finish(self, kernel: str, **arguments: Any) -> None:
        each = _FINISH_TILE[0]
        programs = (self.shape[1] // each,)
        getattr(patch_kernels, kernel)[programs](sizes=self._sizes, fixed=self._fixed(each), **arguments, num_warps=4)

    def _fixed(self, rows: int) -> patch_kernels.Fixed:
        seen = 9 * self.filters.shape[1]
        return patch_kernels.Fixed(seen, self.patches.shape[1], self.shape[1], rows, DTYPES[self.patches.dtype])

    def _filters(self) -> View:
        return View(self.filters, *self.filters.stride())

    @property
    def _places(self) -> int:
        return len(self.patches)

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self._places, *self.shape[2:])


def _columns(filters: Tensor) -> int:
    """Return the columns of a patch: 9 values per input channel and a one, padded to a power of two."""
    inputs = filters.shape[1]
    return 16 if inputs < 2 else 32 if inputs < 4 else 64


def _maps(like: Tensor, shape: tuple[int, int, int, int], memory_format: torch.memory_format) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format)


def _floats(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _backward(gradient: Tensor, normalisation: Normalisation) -> dict[str, Any]:
    return {"affine": normalisation.affine(), "gradient": gradient.contiguous(memory_format=torch.channels_last)}
