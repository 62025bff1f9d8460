"""Triton kernels for a ConvNet's block: normalisation, ReLU and 2x2 average pooling in one pass over the convolution,
whose output lies in memory, channels-last. It is a matrix [places, C]; kernels work on tiles of ``rows`` places with
all channels.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

INTERPRETED: bool = triton.knobs.runtime.interpret  # as kernels are defined: they run in Python, on any device


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


class Running(NamedTuple):
    """A BatchNorm's running statistics, the number of batches behind them, how fast they follow, and the bias that the
    convolution's output is without."""

    bias: Any
    mean: Any
    variance: Any
    batches: Any
    momentum: Any


class Sizes(NamedTuple):
    """How many places the convolution's output has, and how large the pooled map is."""

    places: Any
    height: Any
    width: Any


class Fixed(NamedTuple):
    """What kernels are compiled for."""

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
    """A matrix [places, C] at these places, [rows, C]."""
    at = source + place[:, None].to(tl.int64) * fixed.channels + channels_of(fixed)
    return tl.load(at, mask=inside[:, None], other=0).to(tl.float32)


@triton.jit
def vector(data, c):
    return tl.load(data + c).to(tl.float32)


@triton.jit
def moments(affine, c):
    """The mean, and the reciprocal of the standard deviation, that channels ``c`` are normalised with."""
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
    """Of the gradient of the pooled map, which is the mean of four, what comes to each of these places, [rows, C]."""
    line = place // (2 * sizes.width)
    row = line // (2 * sizes.height) * sizes.height + line % (2 * sizes.height) // 2
    return 0.25 * stored(gradient, row * sizes.width + place % (2 * sizes.width) // 2, inside, fixed)


@triton.jit
def _corrections(affine, totals, sizes, fixed: tl.constexpr):
    """What the batch's own statistics take from the gradient: a constant, and a multiple of the value itself."""
    c = tl.arange(0, fixed.channels)
    mean, deviation = moments(affine, c)
    over = vector(affine.gamma, c) * deviation / sizes.places.to(tl.float32)
    multiple = over * deviation * vector(totals + fixed.channels, c)
    constant = over * vector(totals, c) - multiple * mean
    return constant[None, :], multiple[None, :]


@triton.jit
def through(z, share, scale, shift, constant, multiple):
    """The gradient of the convolution's output ``z``."""
    result = scale[None, :] * tl.where(z * scale[None, :] + shift[None, :] > 0, share, 0)
    if constant is not None:
        result -= constant + multiple * z
    return result


@triton.jit
def forward(source, affine, pooled, sizes, fixed: tl.constexpr):
    """Each program pools ``rows`` windows."""
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
    """Each program's sum of values and of their squares, [2, C, programs]."""
    total = tl.full((fixed.channels,), 0, tl.float32)
    squares = tl.full((fixed.channels,), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        z = stored(source, place, place < sizes.places, fixed)
        total += tl.sum(z, 0)
        squares += tl.sum(z * z, 0)
    _keep(partials, total, squares, fixed)


@triton.jit
def _keep(partials, first, second, fixed: tl.constexpr):
    mine = partials + tl.arange(0, fixed.channels) * tl.num_programs(0) + tl.program_id(0)
    tl.store(mine, first)
    tl.store(mine + fixed.channels * tl.num_programs(0), second)


@triton.jit(do_not_specialize=["programs", "count"])
def finish_statistics(
    partials, batch, running, programs, count, channels: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):
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
    keep_statistics(mean, variance, c, batch, running, count, channels)


@triton.jit
def keep_statistics(mean, variance, c, batch, running, count, channels: tl.constexpr):
    """Write the mean and variance of channels ``c``, and bring the running ones up to date."""
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
    """Each program's sum of gradients, and of their products with the normalised values, [2, C, programs]."""
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
    _keep(partials, total, products if deviation is None else products * deviation, fixed)


@triton.jit
def source_gradient(source, affine, gradient, totals, result, sizes, fixed: tl.constexpr):
    """Each program does ``rows`` places."""
    scale, shift = scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, sizes, fixed)
    place = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    inside = place < sizes.places
    z = stored(source, place, inside, fixed)
    dz = through(z, _share(gradient, place, inside, sizes, fixed), scale, shift, constant, multiple)
    at = result + place[:, None].to(tl.int64) * fixed.channels + channels_of(fixed)
    tl.store(at, dz, mask=inside[:, None])
