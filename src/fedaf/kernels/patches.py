"""Triton kernels for the first block of a ConvNet, whose input has few channels.

The convolution's output is by far the largest tensor. It is never stored, but recomputed from image patches wherever it
is needed.

Patches are a matrix [places, K]. A row holds the pixels that a filter covers at one place of the convolution's output,
then a one, then zeros. Place q (0 to 3) of pooling window w is row q * windows + w.

Because of the one, the products of all patches with each other (``gram``, [K, K]) contain what BatchNorm needs from the
batch: the sum of the convolution's output, which is linear in the patches, and the sum of its squares. Likewise, the
products of the patches with the gradient ([K, C]) contain the gradients of filters, gamma and beta.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from fedaf.kernels.blocks import (
    channels_of,
    moments,
    pointers,
    scale_and_shift,
    store_statistics,
    stored,
    through,
    vector,
)

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_TAPS = tl.constexpr(9)  # values of a 3x3 filter


class Images(NamedTuple):
    """The size and the padding of images."""

    height: Any
    width: Any
    padding: Any


class Fixed(NamedTuple):
    """Compile-time constants of the kernels: a patch has ``seen`` pixels in ``columns`` (K, a power of two) columns;
    products are computed in ``dtype``."""

    seen: Any
    columns: Any
    channels: Any
    rows: Any
    dtype: Any


@triton.jit
def unfold(images, patches, sizes, frame, fixed: tl.constexpr):
    """Write the patches of the images."""
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
    """Return pointers to filters ``c`` as a matrix [K, c], whose rows run over input channel, row and column."""
    k = tl.arange(0, fixed.columns)[:, None]
    tap = k % _TAPS
    offset = k // _TAPS * filters.c + tap // 3 * filters.y + tap % 3 * filters.x
    return filters.data + offset + c[None, :] * filters.n


@triton.jit
def _filters(filters, c, fixed: tl.constexpr):
    """Load filters ``c`` as a matrix [K, c], padded with zeros."""
    there = (tl.arange(0, fixed.columns) < fixed.seen)[:, None]
    return tl.load(_filter_pointers(filters, c, fixed), mask=there, other=0).to(fixed.dtype)


@triton.jit
def _matrix(filters, fixed: tl.constexpr):
    """Load all filters as a matrix [K, C]."""
    return _filters(filters, tl.arange(0, fixed.channels), fixed)


@triton.jit
def _seen(patches, place, inside, fixed: tl.constexpr):
    """Load the patches of these places, [rows, K]."""
    k = tl.arange(0, fixed.columns)[None, :]
    return tl.load(patches + place[:, None].to(tl.int64) * fixed.columns + k, mask=inside[:, None], other=0)


@triton.jit
def pool(patches, filters, affine, pooled, sizes, fixed: tl.constexpr):
    """Compute the pooled map.

    ``rows`` are pooling windows, and tiles are [C, rows]: a thread has few channels, hence few scales and shifts, and
    enough registers for four convolutions.
    """
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
    """Sum the products of patches with each other, per program: [K, K, programs]."""
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
    """Return the row that belongs to the ones of the patches."""
    k = tl.arange(0, fixed.columns)[:, None]
    return tl.sum(tl.where(k == fixed.seen, matrix, 0), 0)


@triton.jit
def finish_gram(products, filters, batch, running, sizes, fixed: tl.constexpr):
    """Compute mean and variance of the convolution's output from the products of patches with each other.

    Each program computes ``rows`` channels, here and in ``finish_gradients``.
    """
    c = tl.program_id(0) * fixed.rows + tl.arange(0, fixed.rows)
    matrix = _filters(filters, c, fixed).to(tl.float32)
    applied = tl.dot(_products(products, fixed), matrix, input_precision="ieee")
    count = sizes.places.to(tl.float32)
    mean = _ones_row(applied, fixed) / count
    variance = tl.maximum(tl.sum(matrix * applied, 0) / count - mean * mean, 0, tl.PropagateNan.ALL)
    store_statistics(mean, variance, c, batch, running, count, fixed.channels)


@triton.jit
def gradient_products(patches, filters, affine, gradient, partials, sizes, fixed: tl.constexpr):
    """Sum the products of patches with the gradient before the ReLU, per program: [K, C, programs].

    ``rows`` are pooling windows, here and in ``patch_gradients``.
    """
    matrix = _matrix(filters, fixed)
    scale, shift = scale_and_shift(affine, fixed)
    windows = sizes.places // 4
    total = tl.full((fixed.columns, fixed.channels), 0, tl.float32)
    for start in range(tl.program_id(0) * fixed.rows, windows, tl.num_programs(0) * fixed.rows):
        window = start + tl.arange(0, fixed.rows)
        inside = window < windows
        share = 0.25 * stored(gradient, window, inside, fixed)  # a pooled value is the mean of four
        for q in range(4):
            seen = _seen(patches, q * windows + window, inside, fixed)
            z = tl.dot(seen, matrix, input_precision="ieee")
            g = tl.where(z * scale[None, :] + shift[None, :] > 0, share, 0).to(fixed.dtype)
            total = tl.dot(tl.trans(seen), g, total, input_precision="ieee")
    k = tl.arange(0, fixed.columns)[:, None]
    at = partials + (k * fixed.channels + channels_of(fixed)) * tl.num_programs(0) + tl.program_id(0)
    tl.store(at, total)


@triton.jit
def finish_gradients(products, gram, filters, affine, result, vectors, sizes, fixed: tl.constexpr):
    """Compute the gradients of filters, beta and gamma; without gamma, those of filters and bias.

    ``products`` are those of patches with the gradient, ``gram`` those of patches with each other.
    """
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
        sums = tl.load(gram + k * fixed.columns + fixed.seen)
        centred = tl.dot(_products(gram, fixed), matrix, input_precision="ieee") - sums * mean[None, :]
        slope -= sums * (total / count)[None, :] + centred * (deviation * correlation / count)[None, :]
        slope *= (vector(affine.gamma, c) * deviation)[None, :]
    tl.store(_filter_pointers(result, c, fixed), slope, mask=k < fixed.seen)


@triton.jit
def patch_gradients(patches, filters, affine, gradient, result, sizes, fixed: tl.constexpr):
    """Compute the gradient of each value of the patches, [seen, places]: neighbouring places are adjacent in memory."""
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
    """Sum the gradients of each pixel over all patches that contain it."""
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
