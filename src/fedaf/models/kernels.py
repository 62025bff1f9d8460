"""Triton kernels for a ConvNet's block: normalisation, ReLU and 2x2 average pooling in one pass over the convolution.

The convolution's output is a matrix [places, C]. It is read from memory, channels-last, with its places in their order
in the map; or, where there are filters, computed from patches [places, K] of the images wherever it is needed, with the
four places of a pooling window one after the other. Kernels work on tiles of ``rows`` places with all channels.
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
    """How many places the convolution's output has, and how large the pooled map is."""

    places: Any
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
    rows: Any
    dtype: Any


@triton.jit
def _pointers(view, n, y, x):
    return view.data + n.to(tl.int64) * view.n + y * view.y + x * view.x


@triton.jit
def _channels(fixed: tl.constexpr):
    return tl.arange(0, fixed.channels)[None, :]


@triton.jit
def _window_of(place, sizes, fixed: tl.constexpr):
    """The number of the pooling window that a place is in."""
    if fixed.inputs > 0:
        return place // 4
    else:
        line = place // (2 * sizes.width)
        row = line // (2 * sizes.height) * sizes.height + line % (2 * sizes.height) // 2
        return row * sizes.width + place % (2 * sizes.width) // 2


@triton.jit
def _matrix_pointers(filters, fixed: tl.constexpr):
    """Of the filters as a matrix [K, C], whose rows run over input channel, row and column."""
    k = tl.arange(0, fixed.columns)[:, None]
    tap = k % _TAPS
    return (
        filters.data
        + k // _TAPS * filters.c
        + tap // 3 * filters.y
        + tap % 3 * filters.x
        + (_channels(fixed) * filters.n)
    )


@triton.jit
def _matrix(filters, fixed: tl.constexpr):
    """The filters as a matrix [K, C], zero beyond the last row."""
    there = (tl.arange(0, fixed.columns) < fixed.inputs * _TAPS)[:, None]
    return tl.load(_matrix_pointers(filters, fixed), mask=there, other=0).to(fixed.dtype)


@triton.jit
def _patches(source, place, inside, fixed: tl.constexpr):
    """What the filters see at these places, [rows, K]."""
    k = tl.arange(0, fixed.columns)[None, :]
    return tl.load(source + place[:, None].to(tl.int64) * fixed.columns + k, mask=inside[:, None], other=0)


@triton.jit
def _stored(source, place, inside, fixed: tl.constexpr):
    """A matrix [places, C] at these places, [rows, C]."""
    pointers = source + place[:, None].to(tl.int64) * fixed.channels + _channels(fixed)
    return tl.load(pointers, mask=inside[:, None], other=0).to(tl.float32)


@triton.jit
def _convolved(source, matrix, place, inside, fixed: tl.constexpr):
    """The convolution's output at these places, [rows, C]; zero where there is none."""
    if matrix is None:
        return _stored(source, place, inside, fixed)
    else:
        return tl.dot(_patches(source, place, inside, fixed), matrix, input_precision="ieee")


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
    return scale[None, :], shift[None, :]


@triton.jit
def _share(gradient, place, inside, sizes, fixed: tl.constexpr):
    """Of the gradient of the pooled map, which is the mean of four, what comes to each of these places, [rows, C]."""
    return 0.25 * _stored(gradient, _window_of(place, sizes, fixed), inside, fixed)


@triton.jit
def _corrections(affine, totals, sizes, fixed: tl.constexpr):
    """What the batch's own statistics take from the gradient: a constant, and a multiple of the value itself."""
    mean, deviation = _moments(affine, fixed)
    over = _vector(affine.gamma, fixed) * deviation / sizes.places.to(tl.float32)
    multiple = over * deviation * _vector(totals + fixed.channels, fixed)
    constant = over * _vector(totals, fixed) - multiple * mean
    return constant[None, :], multiple[None, :]


@triton.jit
def _through(z, share, scale, shift, constant, multiple):
    """The gradient of the convolution's output ``z``."""
    result = scale * tl.where(z * scale + shift > 0, share, 0)
    if constant is not None:
        result -= constant + multiple * z
    return result


@triton.jit
def forward(source, affine, pooled, sizes, fixed: tl.constexpr):
    """Each program pools ``rows`` windows of a convolution's output in memory."""
    scale, shift = _scale_and_shift(affine, fixed)
    window = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    inside = 4 * window < sizes.places
    x = window % sizes.width
    line = window // sizes.width
    total = tl.full((fixed.rows, fixed.channels), 0, tl.float32)
    for q in tl.static_range(4):
        place = (2 * line + q // 2) * (2 * sizes.width) + 2 * x + q % 2
        z = _stored(source, place, inside, fixed)
        total += tl.maximum(z * scale + shift, 0, tl.PropagateNan.ALL)
    pointers = _pointers(pooled, line // sizes.height, line % sizes.height, x)[:, None] + _channels(fixed) * pooled.c
    tl.store(pointers, 0.25 * total, mask=inside[:, None])


@triton.jit
def convolving_forward(source, filters, affine, pooled, sizes, fixed: tl.constexpr):
    """The same, of a convolution that is computed; ``rows`` are places here."""
    matrix = _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    windows: tl.constexpr = fixed.rows // 4
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        z = _convolved(source, matrix, place, place < sizes.places, fixed)
        values = tl.maximum(z * scale + shift, 0, tl.PropagateNan.ALL)
        means = 0.25 * tl.sum(tl.reshape(values, (windows, 4, fixed.channels)), 1)
        window = start // 4 + tl.arange(0, windows)
        line = window // sizes.width
        place_in_map = _pointers(pooled, line // sizes.height, line % sizes.height, window % sizes.width)
        tl.store(place_in_map[:, None] + _channels(fixed) * pooled.c, means, mask=(4 * window < sizes.places)[:, None])


@triton.jit
def statistics(source, filters, partials, sizes, fixed: tl.constexpr):
    """Each program's sum of values and of their squares, [2, C, programs]."""
    matrix = None if filters is None else _matrix(filters, fixed)
    total = tl.full((fixed.channels,), 0, tl.float32)
    squares = tl.full((fixed.channels,), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        z = _convolved(source, matrix, place, place < sizes.places, fixed)
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


@triton.jit
def sums(source, filters, affine, gradient, partials, sizes, fixed: tl.constexpr):
    """Each program's sum of gradients, and of their products with the normalised values, [2, C, programs]."""
    matrix = None if filters is None else _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    mean, deviation = (None, None) if affine.gamma is None else _moments(affine, fixed)
    total = tl.full((fixed.channels,), 0, tl.float32)
    products = tl.full((fixed.channels,), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        inside = place < sizes.places
        z = _convolved(source, matrix, place, inside, fixed)
        g = tl.where(z * scale + shift > 0, _share(gradient, place, inside, sizes, fixed), 0)
        total += tl.sum(g, 0)
        if mean is not None:
            products += tl.sum(g * (z - mean[None, :]), 0)
    _keep(partials, total, products if deviation is None else products * deviation, fixed)


@triton.jit
def source_gradient(source, affine, gradient, totals, result, sizes, fixed: tl.constexpr):
    """Each program does ``rows`` places of a convolution's output in memory."""
    scale, shift = _scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, sizes, fixed)
    place = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    inside = place < sizes.places
    z = _stored(source, place, inside, fixed)
    dz = _through(z, _share(gradient, place, inside, sizes, fixed), scale, shift, constant, multiple)
    pointers = result + place[:, None].to(tl.int64) * fixed.channels + _channels(fixed)
    tl.store(pointers, dz, mask=inside[:, None])


@triton.jit
def filter_gradient(source, filters, affine, gradient, totals, partials, sizes, fixed: tl.constexpr):
    """Each program's sum over places of patch times gradient, [filters, programs]."""
    matrix = _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    constant, multiple = (None, None) if totals is None else _corrections(affine, totals, sizes, fixed)
    total = tl.full((fixed.columns, fixed.channels), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        inside = place < sizes.places
        patches = _patches(source, place, inside, fixed)
        z = tl.dot(patches, matrix, input_precision="ieee")
        dz = _through(z, _share(gradient, place, inside, sizes, fixed), scale, shift, constant, multiple)
        dz = tl.where(inside[:, None], dz, 0).to(fixed.dtype)
        total = tl.dot(tl.trans(patches), dz, total, input_precision="ieee")
    there = (tl.arange(0, fixed.columns) < fixed.inputs * _TAPS)[:, None]
    tl.store(_matrix_pointers(partials, fixed) + tl.program_id(0), total, mask=there)


@triton.jit
def patch_gradients(source, filters, affine, gradient, result, sizes, fixed: tl.constexpr):
    """The gradient of each patch's pixels, [9 * inputs, places]: neighbours in the map lie side by side."""
    matrix = _matrix(filters, fixed)
    scale, shift = _scale_and_shift(affine, fixed)
    k = tl.arange(0, fixed.columns)[None, :]
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        inside = place < sizes.places
        z = _convolved(source, matrix, place, inside, fixed)
        dz = _through(z, _share(gradient, place, inside, sizes, fixed), scale, shift, None, None).to(fixed.dtype)
        pixels = tl.dot(dz, tl.trans(matrix), input_precision="ieee")
        pointers = result + k.to(tl.int64) * sizes.places + place[:, None]
        tl.store(pointers, pixels, mask=inside[:, None] & (k < fixed.inputs * _TAPS))


@triton.jit
def unfold(images, result, sizes, frame, fixed: tl.constexpr):
    """What the filters see at each place, [places, K]; zero beyond the last column."""
    place = (tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows))[:, None]
    q = place % 4
    window = place // 4
    line = window // sizes.width
    n = line // sizes.height
    k = tl.arange(0, fixed.columns)[None, :]
    tap = k % _TAPS
    row = 2 * (line % sizes.height) + q // 2 + tap // 3 - frame.padding
    column = 2 * (window % sizes.width) + q % 2 + tap % 3 - frame.padding
    there = (row >= 0) & (row < frame.height) & (column >= 0) & (column < frame.width)
    there &= (place < sizes.places) & (k < fixed.inputs * _TAPS)
    pixels = tl.load(_pointers(images, n, row, column) + k // _TAPS * images.c, mask=there, other=0)
    pointers = result + place.to(tl.int64) * fixed.columns + k
    tl.store(pointers, pixels.to(fixed.dtype), mask=place < sizes.places)


@triton.jit
def fold(columns, result, pixels, sizes, frame, inputs: tl.constexpr, tile: tl.constexpr):
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
            window = (n * sizes.height + row // 2) * sizes.width + column // 2
            place = 4 * window + row % 2 * 2 + column % 2
            plane = columns + (channel * 9 + tap) * sizes.places.to(tl.int64)
            total += tl.load(plane + place, mask=there, other=0).to(tl.float32)
        tl.store(_pointers(result, n, y, x) + channel * result.c, total, mask=inside)
