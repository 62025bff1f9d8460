"""The noise of differential privacy: Gaussian, rounded to integers, drawn from the operating system.

A server knows the random keys of its clients, so noise that came from such a key could be subtracted. The only other
source is a seed for experiments, whose results are not private.
"""

import math
import os
from collections.abc import Callable

import torch
from torch import Tensor

#: Returns this number of random bytes.
ByteSource = Callable[[int], bytes]

_BITS = 53  # of a float64's fraction


def system_bytes(count: int) -> bytes:
    """Return bytes from the operating system's cryptographic generator."""
    return os.urandom(count)


def seeded_bytes(seed: int) -> ByteSource:
    """Return a repeatable source of bytes, for experiments that are NOT PRIVATE."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> bytes:
        words = torch.randint(-(2**63), 2**63 - 1, (-(-count // 8),), generator=generator)
        return words.numpy().tobytes()[:count]

    return draw


def rounded_gaussian(sigma: float, size: int, source: ByteSource = system_bytes) -> Tensor:
    """Return int64 samples of round(N(0, sigma^2)).

    Added to integers, this is the Gaussian mechanism followed by rounding, which is post-processing: the lowest bits of
    a floating-point sum cannot leak. Samples come from the Box-Muller transform of 53-bit uniform numbers in float64,
    so none is beyond 8.6 sigma, where the normal distribution has a probability below 1e-17.

    Args:
        sigma: Standard deviation before rounding, in units of the lattice.
        size: Number of samples.
        source: Where random bytes come from.
    """
    pairs = -(-size // 2)
    words = torch.frombuffer(bytearray(source(16 * pairs)), dtype=torch.int64).reshape(2, pairs)
    first, second = ((words >> (64 - _BITS)) & ((1 << _BITS) - 1)).double()
    radius = (-2 * torch.log((first + 1) * 2.0**-_BITS)).sqrt()  # of a uniform number in (0, 1]
    angle = 2 * math.pi * second * 2.0**-_BITS
    normal = torch.cat([radius * angle.cos(), radius * angle.sin()])[:size]
    return (sigma * normal).round().long()
