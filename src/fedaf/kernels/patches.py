"""Triton kernels for a ConvNet's first block, which convolves few channels: the convolution's output, by far the
largest tensor, is never written, but computed from patches of the images wherever it is needed.

Patches are a matrix [places, K]: at each place of the convolution's output what a filter sees there, then a one, then
zeros. The four places of a pooling window are as many windows apart as there are.

With the one, the products of all patches with each other (``gram``, [K, K]) hold all that BatchNorm needs to know of
the batch: the sum of the convolution's output, which is linear in the patches, and the sum of its squares. And their
products with the gradient ([K, C]) hold the gradients of filters, gamma and beta together.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fedaf.kernels.blocks import (
    channels_of,
    keep_statistics,
    moments,
    pointers,
    scale_and_shift,
    stored,
    through,
    vector,
)

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_TAPS = tl.constexpr(9)  # of a 3x3 filter


class Images(NamedTuple):
    """How large images are, and how they are padded."""

    height: Any
    width: Any
    padding: Any


class Fixed(NamedTuple):
    """What kernels are compiled for: ``seen`` numbers in a patch, in ``columns`` (K), a power of two. Products are of
    numbers in ``dtype``."""

    seen: Any
    columns: Any
    channels: Any
    rows: Any
    dtype: Any


@triton.jit
def unfold(images, patches, sizes, frame, fixed: tl.constexpr):
    windows = sizes.places // 4
    place = (tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows))[:, None]
    q = place // windows
    window = place % windows
    line = window // sizes.width
    n = line // sizes.height
    k = tl.arange(0, fixed.columns)[None, :]
    tap = k % _TAPS
    row = 2 * (line % sizes.height) + q // 2 + tap // 3 - frame.padding
    column = 2 * (window % sizes.width) + q % 2 + tap % 3 - frame.padding
    there = (row >= 0) & (row < frame.height) & (column >= 0) & (column < frame.width)
    there &= (place < sizes.places) & (k < fixed.seen)
    pixels = tl.load(pointers(images, n, row, column) + k // _TAPS * images.c, mask=there, other=0).to(fixed.dtype)
    at = patches + place.to(tl.int64) * fixed.columns + k
    tl.store(at, tl.where(k == fixed.seen, 1.0, pixels).to(fixed.dtype), mask=place < sizes.places)


@triton.jit
def _filter_pointers(filters, c, fixed: tl.constexpr):
    """Of the filters ``c`` as a matrix [K, c], whose rows run over input channel, row and column."""
    k = tl.arange(0, fixed.columns)[:, None]
    tap = k % _TAPS
    offset = k // _TAPS * filters.c + tap // 3 * filters.y + tap % 3 * filters.x
    return filters.data + offset + c[None, :] * filters.n


@triton.jit
def _filters(filters, c, fixed: tl.constexpr):
    """The filters ``c`` as a matrix [K, c], zero beyond the last row."""
    there = (tl.arange(0, fixed.columns) < fixed.seen)[:, None]
    return tl.load(_filter_pointers(filters, c, fixed), mask=there, other=0).to(fixed.dtype)


@triton.jit
def _matrix(filters, fixed: tl.constexpr):
    """All filters as a matrix [K, C]."""
    return _filters(filters, tl.arange(0, fixed.channels), fixed)


@triton.jit
def _seen(patches, place, inside, fixed: tl.constexpr):
    """The patches of these places, [rows, K]."""
    k = tl.arange(0, fixed.columns)[None, :]
    return tl.load(patches + place[:, None].to(tl.int64) * fixed.columns + k, mask=inside[:, None], other=0)


@triton.jit
def pool(patches, filters, affine, pooled, sizes, fixed: tl.constexpr):
    """The pooled map. ``rows`` are pooling windows here, and tiles [C, rows]: a thread has few channels, and of few
    their scale and shift, which leaves it registers for four convolutions."""
    matrix = tl.trans(_matrix(filters, fixed))
    scale, shift = scale_and_shift(affine, fixed)
    windows = sizes.places // 4
    k = tl.arange(0, fixed.columns)[:, None]
    for start in range(tl.program_id(0) * fixed.rows, windows, tl.num_programs(0) * fixed.rows):
        window = start + tl.arange(0, fixed.rows)
        inside = (window < windows)[None, :]
        total = tl.full((fixed.channels, fixed.rows), 0, tl.float32)
        for q in range(4):
            at = patches + (q * windows + window)[None, :].to(tl.int64) * fixed.columns + k
            z = tl.dot(matrix, tl.load(at, mask=inside, other=0), input_precision="ieee")
            total += tl.maximum(z * scale[:, None] + shift[:, None], 0, tl.PropagateNan.ALL)
        line = window // sizes.width
        at = pointers(pooled, line // sizes.height, line % sizes.height, window % sizes.width)
        at = at[None, :] + tl.arange(0, fixed.channels)[:, None] * pooled.c
        tl.store(at, 0.25 * total, mask=inside)


@triton.jit
def gram(patches, partials, sizes, fixed: tl.constexpr):
    """Each program's sum of products of patches with each other, [K, K, programs]."""
    total = tl.full((fixed.columns, fixed.columns), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, sizes.places, tl.num_programs(0) * fixed.rows):
        place = start + tl.arange(0, fixed.rows)
        seen = _seen(patches, place, place < sizes.places, fixed)
        total = tl.dot(tl.trans(seen), seen, total, input_precision="ieee")
    k = tl.arange(0, fixed.columns)
    at = partials + (k[:, None] * fixed.columns + k[None, :]) * tl.num_programs(0) + tl.program_id(0)
    tl.store(at, total)


@triton.jit
def _products(products, fixed: tl.constexpr):
    k = tl.arange(0, fixed.columns)
    return tl.load(products + k[:, None] * fixed.columns + k[None, :])


@triton.jit
def _ones_row(matrix, fixed: tl.constexpr):
    """The row that belongs to the one of each patch."""
    k = tl.arange(0, fixed.columns)[:, None]
    return tl.sum(tl.where(k == fixed.seen, matrix, 0), 0)


@triton.jit
def finish_gram(products, filters, batch, running, sizes, fixed: tl.constexpr):
    """The mean and variance of the convolution's output, from the products of patches with each other. Each program
    does ``rows`` channels, here and in ``finish_gradients``."""
    c = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    matrix = _filters(filters, c, fixed).to(tl.float32)
    applied = tl.dot(_products(products, fixed), matrix, input_precision="ieee")
    count = sizes.places.to(tl.float32)
    mean = _ones_row(applied, fixed) / count
    variance = tl.maximum(tl.sum(matrix * applied, 0) / count - mean * mean, 0, tl.PropagateNan.ALL)
    keep_statistics(mean, variance, c, batch, running, count, fixed.channels)


@triton.jit
def gradient_products(patches, filters, affine, gradient, partials, sizes, fixed: tl.constexpr):
    """Each program's sum of products of patches with the gradient behind the ReLU, [K, C, programs]. ``rows`` are
    pooling windows, here and in the next."""
    matrix = _matrix(filters, fixed)
    scale, shift = scale_and_shift(affine, fixed)
    windows = sizes.places // 4
    total = tl.full((fixed.columns, fixed.channels), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, windows, tl.num_programs(0) * fixed.rows):
        window = start + tl.arange(0, fixed.rows)
        inside = window < windows
        share = 0.25 * stored(gradient, window, inside, fixed)  # a pooled number is the mean of four
        for q in range(4):
            seen = _seen(patches, q * windows + window, inside, fixed)
            z = tl.dot(seen, matrix, input_precision="ieee")
            g = tl.where(z * scale[None, :] + shift[None, :] > 0, share, 0).to(fixed.dtype)
            total = tl.dot(tl.trans(seen), g, total, input_precision="ieee")
    k = tl.arange(0, fixed.columns)[:, None]
    at = partials + (k * fixed.channels + channels_of(fixed)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(at, total)


@triton.jit
def finish_gradients(products, own, filters, affine, result, vectors, sizes, fixed: tl.constexpr):
    """From the products of patches with the gradient, and with each other (``own``): the gradients of the filters, of
    beta and of gamma. Without gamma: of the filters and of the bias."""
    k = tl.arange(0, fixed.columns)[:, None]
    c = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    with_gradient = tl.load(products + k * fixed.channels + c[None, :])
    total = _ones_row(with_gradient, fixed)
    tl.store(vectors + c, total)
    slope = with_gradient
    if affine.gamma is not None:
        matrix = _filters(filters, c, fixed).to(tl.float32)
        mean, deviation = moments(affine, c)
        correlation = (tl.sum(matrix * with_gradient, 0) - mean * total) * deviation
        tl.store(vectors + fixed.channels + c, correlation)
        count = sizes.places.to(tl.float32)
        sums = tl.load(own + k * fixed.columns + fixed.seen)
        centred = tl.dot(_products(own, fixed), matrix, input_precision="ieee") - sums * mean[None, :]
        slope -= sums * (total / count)[None, :] + centred * (deviation * correlation / count)[None, :]
        slope *= (vector(affine.gamma, c) * deviation)[None, :]
    tl.store(_filter_pointers(result, c, fixed), slope, mask=k < fixed.seen)


@triton.jit
def patch_gradients(patches, filters, affine, gradient, result, sizes, fixed: tl.constexpr):
    """The gradient of each number in a patch, [seen, places]: neighbours in the map lie side by side."""
    matrix = _matrix(filters, fixed)
    scale, shift = scale_and_shift(affine, fixed)
    k = tl.arange(0, fixed.columns)[None, :]
    windows = sizes.places // 4
    for start in range(tl.program_id(0) * fixed.rows, windows, tl.num_programs(0) * fixed.rows):
        window = start + tl.arange(0, fixed.rows)
        inside = window < windows
        share = 0.25 * stored(gradient, window, inside, fixed)
        for q in range(4):
            place = q * windows + window
            z = tl.dot(_seen(patches, place, inside, fixed), matrix, input_precision="ieee")
            dz = through(z, share, scale, shift, None, None).to(fixed.dtype)
            pixels = tl.dot(dz, tl.trans(matrix), input_precision="ieee")
            at = result + k.to(tl.int64) * sizes.places + place[:, None]
            tl.store(at, pixels, mask=inside[:, None] & (k < fixed.seen))


@triton.jit
def fold(columns, result, pixels, sizes, frame, inputs: tl.constexpr, tile: tl.constexpr):
    """The sum, for each pixel, over all patches that it is in."""
    pixel = tl.program_id(0) * tile + tl.arange(0, tile)
    inside = pixel < pixels
    windows = sizes.places // 4
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
            place = (row % 2 * 2 + column % 2) * windows + window
            plane = columns + (channel * 9 + tap) * sizes.places.to(tl.int64)
            total += tl.load(plane + place, mask=there, other=0).to(tl.float32)
        tl.store(pointers(result, n, y, x) + channel * result.c, total, mask=inside)
