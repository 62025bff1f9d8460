"""Triton kernels for a ConvNet's block: normalisation, ReLU and 2x2 average pooling in one pass over the convolution.

The convolution's output is read from memory or, where there are filters, computed from patches of the images wherever
it is needed: all that a filter sees at one place lies side by side. A tile of it is [C, tile]: at one place in each of
``tile`` pooling windows, all channels. Channels come first since a thread then holds the values of few of them, and of
few their scale, shift and mean.
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
    """Of the pooled map."""

    height: Any
    width: Any


class Images(NamedTuple):
    """How large images are, and how they are padded."""

    height: Any
    width: Any
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
def _patches(patches, q, position, inside, positions, fixed: tl.constexpr):
    """What the filters see at place ``q`` of each pooling window, [K, tile]."""
    k = tl.arange(0, fixed.columns)[:, None]
    row = q * positions + position
    return tl.load(patches + row.to(tl.int64) * fixed.columns + k, mask=inside, other=0)


@triton.jit
def _convolved(source, matrix, q, position, n, y, x, inside, positions, fixed: tl.constexpr):
    """The convolution's output at place ``q`` of each pooling window, [C, tile]; zero where there is no window."""
    if matrix is None:
        pointers = _pointers(source, n, 2 * y + q // 2, 2 * x + q % 2) + _channels(fixed) * source.c
        return tl.load(pointers, mask=inside, other=0).to(tl.float32)
    else:
        patches = _patches(source, q, position, inside, positions, fixed)
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
        position, n, y, x, inside = _window(tile, positions, sizes, fixed)
        total = tl.full((fixed.channels, fixed.tile), 0, tl.float32)
        for q in tl.range(4, loop_unroll_factor=unroll):
            z = _convolved(source, matrix, q, position, n, y, x, inside, positions, fixed)
            total += tl.maximum(z * scale + shift, 0, tl.PropagateNan.ALL)
        tl.store(_pointers(pooled, n, y, x) + _channels(fixed) * pooled.c, 0.25 * total, mask=inside)


@triton.jit(do_not_specialize=["positions"])
def statistics(source, filters, partials, positions, sizes, fixed: tl.constexpr):
    """Each program's sum of values and of their squares, [2, C, programs]."""
    matrix = None if filters is None else _matrix(filters, fixed)
    total = tl.full((fixed.channels,), 0, tl.float32)
    squares = tl.full((fixed.channels,), 0, tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        position, n, y, x, inside = _window(tile, positions, sizes, fixed)
        for q in range(4):
            z = _convolved(source, matrix, q, position, n, y, x, inside, positions, fixed)
            total += tl.sum(z, 1)
            squares += tl.sum(z * z, 1)
    mine = partials + tl.arange(0, fixed.channels) * tl.num_programs(0) + tl.program_id(0)
    tl.store(mine, total)
    tl.store(mine + fixed.channels * tl.num_programs(0), squares)


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
    total = tl.zeros((columns, rows), tl.float32)
    squares = tl.zeros((columns, rows), tl.float32)
    for first in range(0, programs, rows):
        program = (first + tl.arange(0, rows))[None, :]
        pointers = partials + c[:, None] * programs + program
        total += tl.load(pointers, mask=program < programs, other=0)
        squares += tl.load(pointers + channels * programs, mask=program < programs, other=0)
    mean = tl.sum(total, 1) / count
    variance = tl.maximum(tl.sum(squares, 1) / count - mean * mean, 0, tl.PropagateNan.ALL)
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
    """Each program's sum of gradients, and of their products with the normalised values, [2, C, programs]."""
    matrix = None if filters is None else _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    mean, deviation = (None, None) if affine.gamma is None else _moments(affine, fixed)
    total = tl.full((fixed.channels,), 0, tl.float32)
    products = tl.full((fixed.channels,), 0, tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        position, n, y, x, inside = _window(tile, positions, sizes, fixed)
        share = _share(gradient, n, y, x, inside, fixed)
        for q in range(4):
            z = _convolved(source, matrix, q, position, n, y, x, inside, positions, fixed)
            g = tl.where(z * scale + shift > 0, share, 0)
            total += tl.sum(g, 1)
            if mean is not None:
                products += tl.sum(g * (z - mean[:, None]), 1)
    mine = partials + tl.arange(0, fixed.channels) * tl.num_programs(0) + tl.program_id(0)
    tl.store(mine, total)
    tl.store(mine + fixed.channels * tl.num_programs(0), products if deviation is None else products * deviation)


@triton.jit(do_not_specialize=["positions"])
def source_gradient(source, filters, affine, gradient, totals, result, positions, sizes, fixed: tl.constexpr):
    scale, shift = _scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, positions, fixed)
    position, n, y, x, inside = _window(tl.program_id(0), positions, sizes, fixed)
    share = _share(gradient, n, y, x, inside, fixed)
    for q in tl.static_range(4):
        z = _convolved(source, None, q, position, n, y, x, inside, positions, fixed)
        pointers = _pointers(result, n, 2 * y + q // 2, 2 * x + q % 2) + _channels(fixed) * result.c
        tl.store(pointers, _through(z, share, scale, shift, constant, multiple), mask=inside)


@triton.jit(do_not_specialize=["positions"])
def filter_gradient(source, filters, affine, gradient, totals, partials, positions, sizes, fixed: tl.constexpr):
    """Each program's sum over positions of gradient times patch, [filters, programs]."""
    matrix = _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, positions, fixed)
    total = tl.full((fixed.channels, fixed.columns), 0, tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(positions, fixed.tile), tl.num_programs(0)):
        position, n, y, x, inside = _window(tile, positions, sizes, fixed)
        share = _share(gradient, n, y, x, inside, fixed)
        for q in range(4):
            patches = _patches(source, q, position, inside, positions, fixed)
            z = tl.dot(matrix, patches, input_precision="ieee")
            dz = _through(z, share, scale, shift, constant, multiple).to(fixed.dtype)
            total = tl.dot(dz, tl.trans(patches), total, input_precision="ieee")
    pointers = _matrix_pointers(partials, fixed) + tl.program_id(0)
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
            z = _convolved(source, matrix, q, position, n, y, x, inside, positions, fixed)
            dz = _through(z, share, scale, shift, None, None).to(fixed.dtype)
            pixels = tl.dot(tl.trans(matrix), dz, input_precision="ieee")
            pointers = result + (4 * k + q).to(tl.int64) * positions + position
            tl.store(pointers, pixels, mask=inside & (k < fixed.inputs * _TAPS))


@triton.jit(do_not_specialize=["positions"])
def unfold(images, result, positions, sizes, frame, fixed: tl.constexpr):
    """What the filters see at each place of each pooling window, [4, positions, K]; zero beyond the last column."""
    position = (tl.program_id(0) * fixed.tile + tl.arange(0, fixed.tile))[:, None]
    line = position // sizes.width
    n = line // sizes.height
    k = tl.arange(0, fixed.columns)[None, :]
    tap = k % _TAPS
    q = tl.program_id(1)
    row = 2 * (line % sizes.height) + q // 2 + tap // 3 - frame.padding
    column = 2 * (position % sizes.width) + q % 2 + tap % 3 - frame.padding
    there = (row >= 0) & (row < frame.height) & (column >= 0) & (column < frame.width)
    there &= (position < positions) & (k < fixed.inputs * _TAPS)
    pixels = tl.load(_pointers(images, n, row, column) + k // _TAPS * images.c, mask=there, other=0)
    place = q * positions + position
    tl.store(result + place.to(tl.int64) * fixed.columns + k, pixels.to(fixed.dtype), mask=position < positions)


@triton.jit
def fold(columns, result, positions, pixels, sizes, frame, inputs: tl.constexpr, tile: tl.constexpr):
    """The sum, for each pixel, over all patches that it is in."""
    pixel = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = pixel < pixels
    x = pixel % frame.width
    y = pixel // frame.width % frame.height
    n = pixel // (frame.width * frame.height)
    for channel in tl.static_range(inputs):
        total = tl.zeros((tile,), tl.float32)
        for tap in tl.static_range(9):
            row = y + frame.padding - tap // 3
            column = x + frame.padding - tap % 3
            there = inside & (row >= 0) & (row < 2 * sizes.height) & (column >= 0) & (column < 2 * sizes.width)
            q = row % 2 * 2 + column % 2
            position = (n * sizes.height + row // 2) * sizes.width + column // 2
            plane = (4 * (channel * 9 + tap) + q).to(tl.int64) * positions
            total += tl.load(columns + plane + position, mask=there, other=0).to(tl.float32)
        tl.store(_pointers(result, n, y, x) + channel * result.c, total, mask=inside)
