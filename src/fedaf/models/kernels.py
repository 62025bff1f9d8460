"""Triton kernels for a ConvNet's block: normalisation, ReLU and 2x2 average pooling in one pass over the convolution.

The convolution's output is read from memory or, where there are filters, computed from the images wherever it is
needed. A tile of it is [C, tile]: at one place in each of ``tile`` pooling windows, all channels. Channels come first
since a thread then holds the values of few of them, and of few their scale, shift and mean.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

INTERPRETED: bool = triton.knobs.runtime.interpret  # as kernels are defined: they run in Python, on any device
DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_TAPS = tl.constexpr(9)  # of a 3x3 filter


class View(NamedTuple):
    """A tensor of four dimensions and its strides; of filters, ``n`` is that of the output channel."""

    data: Any
    n: Any
    c: Any
    y: Any
    x: Any


class Affine(NamedTuple):
    """What is done to each channel: without ``gamma`` nothing but a bias."""

    bias: Any
    gamma: Any
    beta: Any
    mean: Any
    variance: Any
    eps: Any


class Sizes(NamedTuple):
    """Of the pooled map, and of the images and their padding."""

    height: Any
    width: Any
    image_height: Any
    image_width: Any
    padding: Any


class Fixed(NamedTuple):
    """What kernels are compiled for. ``columns`` (K below) are those of the filters as a matrix: 9 for each of the
    ``inputs``, filled up to a power of two. Products are of numbers in ``dtype``."""

    inputs: Any
    columns: Any
    channels: Any
    tile: Any
    dtype: Any


@triton.jit
def _window(tile, positions, sizes, fixed: tl.constexpr):
    """Of each pooled position of a tile: its index, image, row and column, and whether there is one; all [1, tile]."""
    position = (tile * fixed.tile + tl.arange(0, fixed.tile))[None, :]
    row = position // sizes.width
    return position, row // sizes.height, row % sizes.height, position % sizes.width, position < positions


@triton.jit
def _pointers(view, n, y, x):
    return view.data + n.to(tl.int64) * view.n + y * view.y + x * view.x


@triton.jit
def _channels(fixed: tl.constexpr):
    return tl.arange(0, fixed.channels)[:, None]


@triton.jit
def _matrix_pointers(filters, fixed: tl.constexpr):
    """Of the filters as a matrix [C, K], whose columns run over input channel, row and column."""
    k = tl.arange(0, fixed.columns)[None, :]
    tap = k % _TAPS
    offset = k // _TAPS * filters.c + tap // 3 * filters.y + tap % 3 * filters.x
    return filters.data + _channels(fixed) * filters.n + offset


@triton.jit
def _matrix(filters, fixed: tl.constexpr):
    """The filters as a matrix [C, K], zero beyond the last column."""
    there = (tl.arange(0, fixed.columns) < fixed.inputs * _TAPS)[None, :]
    return tl.load(_matrix_pointers(filters, fixed), mask=there, other=0).to(fixed.dtype)


@triton.jit
def _patches(images, n, y, x, inside, sizes, fixed: tl.constexpr):
    """What the filters see at (y, x) of the convolution's output, [K, tile]."""
    k = tl.arange(0, fixed.columns)[:, None]
    tap = k % _TAPS
    down = tap // 3 - sizes.padding
    right = tap % 3 - sizes.padding
    row = y + down
    column = x + right
    # One comparison instead of two: a negative number is a large one without its sign.
    there = row.to(tl.uint32, bitcast=True) < tl.cast(sizes.image_height, tl.uint32)
    there &= column.to(tl.uint32, bitcast=True) < tl.cast(sizes.image_width, tl.uint32)
    there &= inside & (k < fixed.inputs * _TAPS)
    offset = k // _TAPS * images.c + down * images.y + right * images.x
    return tl.load(_pointers(images, n, y, x) + offset, mask=there, other=0).to(fixed.dtype)


@triton.jit
def _convolved(source, matrix, n, y, x, inside, sizes, fixed: tl.constexpr):
    """The convolution's output at (y, x), [C, tile]; zero where there is no position."""
    if matrix is None:
        pointers = _pointers(source, n, y, x) + _channels(fixed) * source.c
        return tl.load(pointers, mask=inside, other=0).to(tl.float32)
    else:
        patches = _patches(source, n, y, x, inside, sizes, fixed)
        return tl.dot(matrix, patches, input_precision="ieee")


@triton.jit
def _vector(data, fixed: tl.constexpr):
    return tl.load(data + tl.arange(0, fixed.channels)).to(tl.float32)


@triton.jit
def _moments(affine, fixed: tl.constexpr):
    """The mean, and the reciprocal of the standard deviation, that a channel is normalised with."""
    return _vector(affine.mean, fixed), 1 / tl.sqrt_rn(_vector(affine.variance, fixed) + affine.eps)


@triton.jit
def _scale_and_shift(affine, fixed: tl.constexpr):
    scale = tl.full((fixed.channels,), 1, tl.float32)
    shift = tl.full((fixed.channels,), 0, tl.float32)
    if affine.bias is not None:
        shift += _vector(affine.bias, fixed)
    if affine.gamma is not None:
        mean, deviation = _moments(affine, fixed)
        scale = _vector(affine.gamma, fixed) * deviation
        shift = (shift - mean) * scale + _vector(affine.beta, fixed)
    return scale[:, None], shift[:, None]


@triton.jit
def _share(gradient, n, y, x, inside, fixed: tl.constexpr):
    """The gradient of each of the four values that a pooled one is the mean of, [C, tile]."""
    pointers = _pointers(gradient, n, y, x) + _channels(fixed) * gradient.c
    return 0.25 * tl.load(pointers, mask=inside, other=0).to(tl.float32)


@triton.jit
def _corrections(affine, totals, positions, fixed: tl.constexpr):
    """What the batch's own statistics take from the gradient: a constant, and a multiple of the value itself."""
    mean, deviation = _moments(affine, fixed)
    over = _vector(affine.gamma, fixed) * deviation / (4.0 * positions)
    multiple = over * deviation * _vector(totals + fixed.channels, fixed)
    constant = over * _vector(totals, fixed) - multiple * mean
    return constant[:, None], multiple[:, None]


@triton.jit
def _through(z, share, scale, shift, constant, multiple):
    """The gradient of the convolution's output ``z``."""
    result = scale * tl.where(z * scale + shift > 0, share, 0)
    if constant is not None:
        result -= constant + multiple * z
    return result


@triton.jit(do_not_specialize=["positions"])
def forward(source, filters, affine, pooled, positions, sizes, fixed: tl.constexpr, unroll: tl.constexpr):
    matrix = None if filters is None else _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        _, n, y, x, inside = _window(tile, positions, sizes, fixed)
        total = tl.full((fixed.channels, fixed.tile), 0, tl.float32)
        for q in tl.range(4, loop_unroll_factor=unroll):
            z = _convolved(source, matrix, n, 2 * y + q // 2, 2 * x + q % 2, inside, sizes, fixed)
            total += tl.maximum(z * scale + shift, 0, tl.PropagateNan.ALL)
        tl.store(_pointers(pooled, n, y, x) + _channels(fixed) * pooled.c, 0.25 * total, mask=inside)


@triton.jit(do_not_specialize=["positions"])
def statistics(source, filters, partials, positions, sizes, fixed: tl.constexpr):
    """Each program's sum of values and of their squares, [programs, 2, C]."""
    matrix = None if filters is None else _matrix(filters, fixed)
    total = tl.full((fixed.channels,), 0, tl.float32)
    squares = tl.full((fixed.channels,), 0, tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        _, n, y, x, inside = _window(tile, positions, sizes, fixed)
        for q in range(4):
            z = _convolved(source, matrix, n, 2 * y + q // 2, 2 * x + q % 2, inside, sizes, fixed)
            total += tl.sum(z, 1)
            squares += tl.sum(z * z, 1)
    row = partials + tl.program_id(0) * 2 * fixed.channels + tl.arange(0, fixed.channels)
    tl.store(row, total)
    tl.store(row + fixed.channels, squares)


@triton.jit(do_not_specialize=["programs", "count"])
def finish_statistics(
    partials,
    batch,
    bias,
    running_mean,
    running_variance,
    batches,
    programs,
    count,
    momentum,
    channels: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    c = tl.program_id(0) * columns + tl.arange(0, columns)
    total = tl.zeros((rows, columns), tl.float32)
    squares = tl.zeros((rows, columns), tl.float32)
    for first in range(0, programs, rows):
        row = (first + tl.arange(0, rows))[:, None]
        pointers = partials + row * 2 * channels + c[None, :]
        total += tl.load(pointers, mask=row < programs, other=0)
        squares += tl.load(pointers + channels, mask=row < programs, other=0)
    mean = tl.sum(total, 0) / count
    variance = tl.maximum(tl.sum(squares, 0) / count - mean * mean, 0, tl.PropagateNan.ALL)
    tl.store(batch + c, mean)
    tl.store(batch + channels + c, variance)
    if bias is not None:
        mean += tl.load(bias + c).to(tl.float32)
    old = tl.load(running_mean + c).to(tl.float32)
    tl.store(running_mean + c, old + momentum * (mean - old))
    old = tl.load(running_variance + c).to(tl.float32)
    tl.store(running_variance + c, old + momentum * (variance * (count / (count - 1)) - old))
    if tl.program_id(0) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=["positions"])
def sums(source, filters, affine, gradient, partials, positions, sizes, fixed: tl.constexpr):
    """Each program's sum of gradients, and of their products with the normalised values, [programs, 2, C]."""
    matrix = None if filters is None else _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    mean, deviation = (None, None) if affine.gamma is None else _moments(affine, fixed)
    total = tl.full((fixed.channels,), 0, tl.float32)
    products = tl.full((fixed.channels,), 0, tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        _, n, y, x, inside = _window(tile, positions, sizes, fixed)
        share = _share(gradient, n, y, x, inside, fixed)
        for q in range(4):
            z = _convolved(source, matrix, n, 2 * y + q // 2, 2 * x + q % 2, inside, sizes, fixed)
            g = tl.where(z * scale + shift > 0, share, 0)
            total += tl.sum(g, 1)
            if mean is not None:
                products += tl.sum(g * (z - mean[:, None]), 1)
    row = partials + tl.program_id(0) * 2 * fixed.channels + tl.arange(0, fixed.channels)
    tl.store(row, total)
    tl.store(row + fixed.channels, products if deviation is None else products * deviation)


@triton.jit(do_not_specialize=["positions"])
def source_gradient(source, filters, affine, gradient, totals, result, positions, sizes, fixed: tl.constexpr):
    scale, shift = _scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, positions, fixed)
    _, n, y, x, inside = _window(tl.program_id(0), positions, sizes, fixed)
    share = _share(gradient, n, y, x, inside, fixed)
    for q in tl.static_range(4):
        row = 2 * y + q // 2
        column = 2 * x + q % 2
        z = _convolved(source, None, n, row, column, inside, sizes, fixed)
        pointers = _pointers(result, n, row, column) + _channels(fixed) * result.c
        tl.store(pointers, _through(z, share, scale, shift, constant, multiple), mask=inside)


@triton.jit(do_not_specialize=["positions"])
def filter_gradient(source, filters, affine, gradient, totals, partials, positions, sizes, fixed: tl.constexpr):
    """Each program's sum over positions of gradient times patch, laid out as the filters are."""
    matrix = _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, positions, fixed)
    total = tl.full((fixed.channels, fixed.columns), 0, tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        _, n, y, x, inside = _window(tile, positions, sizes, fixed)
        share = _share(gradient, n, y, x, inside, fixed)
        for q in range(4):
            patches = _patches(source, n, 2 * y + q // 2, 2 * x + q % 2, inside, sizes, fixed)
            z = tl.dot(matrix, patches, input_precision="ieee")
            dz = _through(z, share, scale, shift, constant, multiple).to(fixed.dtype)
            total = tl.dot(dz, tl.trans(patches), total, input_precision="ieee")
    pointers = _matrix_pointers(partials, fixed) + tl.program_id(0) * (fixed.inputs * _TAPS * fixed.channels)
    tl.store(pointers, total, mask=(tl.arange(0, fixed.columns) < fixed.inputs * _TAPS)[None, :])


@triton.jit
def patch_gradients(source, filters, affine, gradient, result, positions, sizes, fixed: tl.constexpr):
    """The gradient of each patch's pixels, [9 * inputs, 4, positions]: neighbours in the map lie side by side."""
    matrix = _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    k = tl.arange(0, fixed.columns)[:, None]
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        position, n, y, x, inside = _window(tile, positions, sizes, fixed)
        share = _share(gradient, n, y, x, inside, fixed)
        for q in range(4):
            z = _convolved(source, matrix, n, 2 * y + q // 2, 2 * x + q % 2, inside, sizes, fixed)
            dz = _through(z, share, scale, shift, None, None).to(fixed.dtype)
            pixels = tl.dot(tl.trans(matrix), dz, input_precision="ieee")
            pointers = result + (4 * k + q).to(tl.int64) * positions + position
            tl.store(pointers, pixels, mask=inside & (k < fixed.inputs * _TAPS))


@triton.jit
def fold(columns, result, positions, pixels, sizes, inputs: tl.constexpr, tile: tl.constexpr):
    """The sum, for each pixel, over all patches that it is in."""
    pixel = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = pixel < pixels
    x = pixel % sizes.image_width
    y = pixel // sizes.image_width % sizes.image_height
    n = pixel // (sizes.image_width * sizes.image_height)
    for channel in tl.static_range(inputs):
        total = tl.zeros((tile,), tl.float32)
        for tap in tl.static_range(9):
            row = y + sizes.padding - tap // 3
            column = x + sizes.padding - tap % 3
            there = inside & (row >= 0) & (row < 2 * sizes.height) & (column >= 0) & (column < 2 * sizes.width)
            q = row % 2 * 2 + column % 2
            position = (n * sizes.height + row // 2) * sizes.width + column // 2
            plane = (4 * (channel * 9 + tap) + q).to(tl.int64) * positions
            total += tl.load(columns + plane + position, mask=there, other=0).to(tl.float32)
        tl.store(_pointers(result, n, y, x) + channel * result.c, total, mask=inside)
