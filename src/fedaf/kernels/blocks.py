"""Triton kernels for a ConvNet block: normalisation, ReLU and 2x2 average pooling in one pass over memory.

The convolution's output is stored channels-last, as a matrix [places, C], where a place is one pixel of one image.
Kernels work on tiles of ``rows`` places with all channels. ``launch.py`` launches them.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

INTERPRETED: bool = triton.knobs.runtime.interpret  # whether kernels run in Triton's interpreter, on any device


class View(NamedTuple):
    """A four-dimensional tensor and its strides; for filters, ``n`` is the stride of the output channel."""

    data: Any
    n: Any
    c: Any
    y: Any
    x: Any


class Affine(NamedTuple):
    """The normalisation of each channel; without ``gamma`` only a bias."""

    bias: Any
    gamma: Any
    beta: Any
    mean: Any
    variance: Any
    eps: Any


class Running(NamedTuple):
    """A BatchNorm's running statistics, its number of batches and momentum, and the bias of the convolution, which the
    stored output does not include."""

    bias: Any
    mean: Any
    variance: Any
    batches: Any
    momentum: Any


class Sizes(NamedTuple):
    """The number of places of the convolution's output, and the size of the pooled map."""

    places: Any
    height: Any
    width: Any


class Fixed(NamedTuple):
    """Compile-time constants of the kernels."""

    channels: Any
    rows: Any


@triton.jit
def pointers(view, n, y, x):
    return view.data + n.to(tl.int64) * view.n + y * view.y + x * view.x


@triton.jit
def channels_of(fixed: tl.constexpr):
    return tl.arange(0, fixed.channels)[None, :]


@triton.jit
def stored(source, place, inside, fixed: tl.constexpr):
    """Load rows of a matrix [places, C] as [rows, C]."""
    at = source + place[:, None].to(tl.int64) * fixed.channels + channels_of(fixed)
    return tl.load(at, mask=inside[:, None], other=0).to(tl.float32)


@triton.jit
def vector(data, c):
    return tl.load(data + c).to(tl.float32)


@triton.jit
def moments(affine, c):
    """Return mean and reciprocal standard deviation of channels ``c``."""
    return vector(affine.mean, c), 1 / tl.sqrt_rn(vector(affine.variance, c) + affine.eps)


@triton.jit
def scale_and_shift(affine, fixed: tl.constexpr):
    c = tl.arange(0, fixed.channels)
    scale = tl.full((fixed.channels,), 1, tl.float32)
    shift = tl.full((fixed.channels,), 0, tl.float32)
    if affine.bias is not None:
        shift += vector(affine.bias, c)
    if affine.gamma is not None:
        mean, deviation = moments(affine, c)
        scale = vector(affine.gamma, c) * deviation
        shift = (shift - mean) * scale + vector(affine.beta, c)
    return scale, shift


@triton.jit
def _share(gradient, place, inside, sizes, fixed: tl.constexpr):
    """Return each place's share, a quarter, of the gradient of its pooling window, [rows, C]."""
    line = place // (2 * sizes.width)
    row = line // (2 * sizes.height) * sizes.height + line % (2 * sizes.height) // 2
    return 0.25 * stored(gradient, row * sizes.width + place % (2 * sizes.width) // 2, inside, fixed)


@triton.jit
def _corrections(affine, totals, sizes, fixed: tl.constexpr):
    """Return the terms of BatchNorm's gradient that come from batch statistics: a constant and a multiple of z."""
    c = tl.arange(0, fixed.channels)
    mean, deviation = moments(affine, c)
    over = vector(affine.gamma, c) * deviation / sizes.places.to(tl.float32)
    multiple = over * deviation * vector(totals + fixed.channels, c)
    constant = over * vector(totals, c) - multiple * mean
    return constant[None, :], multiple[None, :]


@triton.jit
def through(z, share, scale, shift, constant, multiple):
    """Return the gradient of the convolution's output ``z``."""
    result = scale[None, :] * tl.where(z * scale[None, :] + shift[None, :] > 0, share, 0)
    if constant is not None:
        result -= constant + multiple * z
    return result


@triton.jit
def forward(source, affine, pooled, sizes, fixed: tl.constexpr):
    """Compute the pooled map; each program computes ``rows`` windows."""
    scale, shift = scale_and_shift(affine, fixed)
    window = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    inside = 4 * window < sizes.places
    x = window % sizes.width
    line = window // sizes.width
    total = tl.full((fixed.rows, fixed.channels), 0, tl.float32)
    for q in tl.static_range(4):
        place = (2 * line + q // 2) * (2 * sizes.width) + 2 * x + q % 2
        z = stored(source, place, inside, fixed)
        total += tl.maximum(z * scale[None, :] + shift[None, :], 0, tl.PropagateNan.ALL)
    at = pointers(pooled, line // sizes.height, line % sizes.height, x)
    tl.store(at[:, None] + channels_of(fixed) * pooled.c, 0.25 * total, mask=inside[:, None])


@triton.jit
def statistics(source, partials, sizes, fixed: tl.constexpr):
    """Sum the values and their squares, per program: [2, C, programs]."""
    total = tl.full((fixed.channels,), 0, tl.float32)
    squares = tl.full((fixed.channels,), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        z = stored(source, place, place < sizes.places, fixed)
        total += tl.sum(z, 0)
        squares += tl.sum(z * z, 0)
    _store_partials(partials, total, squares, fixed)


@triton.jit
def _store_partials(partials, first, second, fixed: tl.constexpr):
    mine = partials + tl.arange(0, fixed.channels) * tl.num_programs(0) + tl.program_id(0)
    tl.store(mine, first)
    tl.store(mine + fixed.channels * tl.num_programs(0), second)


@triton.jit(do_not_specialize=["programs", "count"])
def finish_statistics(
    partials, batch, running, programs, count, channels: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):
    """Compute mean and variance of each channel from the programs' sums."""
    c = tl.program_id(0) * columns + tl.arange(0, columns)
    total = tl.zeros((columns, rows), tl.float32)
    squares = tl.zeros((columns, rows), tl.float32)
    for first in range(0, programs, rows):
        program = (first + tl.arange(0, rows))[None, :]
        at = partials + c[:, None] * programs + program
        total += tl.load(at, mask=program < programs, other=0)
        squares += tl.load(at + channels * programs, mask=program < programs, other=0)
    mean = tl.sum(total, 1) / count
    variance = tl.maximum(tl.sum(squares, 1) / count - mean * mean, 0, tl.PropagateNan.ALL)
    store_statistics(mean, variance, c, batch, running, count, channels)


@triton.jit
def store_statistics(mean, variance, c, batch, running, count, channels: tl.constexpr):
    """Store mean and variance of channels ``c``, and update the running ones."""
    tl.store(batch + c, mean)
    tl.store(batch + channels + c, variance)
    if running.bias is not None:
        mean += tl.load(running.bias + c).to(tl.float32)
    old = tl.load(running.mean + c).to(tl.float32)
    tl.store(running.mean + c, old + running.momentum * (mean - old))
    old = tl.load(running.variance + c).to(tl.float32)
    tl.store(running.variance + c, old + running.momentum * (variance * (count / (count - 1)) - old))
    if tl.program_id(0) == 0:
        tl.store(running.batches, tl.load(running.batches) + 1)


@triton.jit
def sums(source, affine, gradient, partials, sizes, fixed: tl.constexpr):
    """Sum the gradients and their products with normalised values, per program: [2, C, programs]."""
    scale, shift = scale_and_shift(affine, fixed)
    mean, deviation = (None, None) if affine.gamma is None else moments(affine, tl.arange(0, fixed.channels))
    total = tl.full((fixed.channels,), 0, tl.float32)
    products = tl.full((fixed.channels,), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        inside = place < sizes.places
        z = stored(source, place, inside, fixed)
        g = tl.where(z * scale[None, :] + shift[None, :] > 0, _share(gradient, place, inside, sizes, fixed), 0)
        total += tl.sum(g, 0)
        if mean is not None:
            products += tl.sum(g * (z - mean[None, :]), 0)
    _store_partials(partials, total, products if deviation is None else products * deviation, fixed)


@triton.jit
def source_gradient(source, affine, gradient, totals, result, sizes, fixed: tl.constexpr):
    """Compute the gradient of the convolution's output; each program computes ``rows`` places."""
    scale, shift = scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, sizes, fixed)
    place = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    inside = place < sizes.places
    z = stored(source, place, inside, fixed)
    dz = through(z, _share(gradient, place, inside, sizes, fixed), scale, shift, constant, multiple)
    at = result + place[:, None].to(tl.int64) * fixed.channels + channels_of(fixed)
    tl.store(at, dz, mask=inside[:, None])
