"""A Triton kernel that selects and normalises the images of a batch in one pass over memory.

The PyTorch path that it is tested against is ``fedaf.data.pixels.normalise(images[rows])``.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 1024


def take(images: Tensor, rows: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return ``images[rows] * scale + shift`` per channel in float32, for contiguous uint8 images [N, C, H, W]."""
    result = images.new_empty((len(rows), *images.shape[1:]), dtype=torch.float32)
    channels, pixels = images.shape[1], images.shape[2] * images.shape[3]
    _take[(len(rows), triton.cdiv(channels * pixels, _TILE))](
        images, rows, scale, shift, result, pixels, channels * pixels, tile=_TILE
    )
    return result


@triton.jit
def _take(images, rows, scale, shift, result, pixels, size, tile: tl.constexpr):
    place = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = place < size
    row = tl.load(rows + tl.program_id(0))
    stored = tl.load(images + row * size + place, mask=inside, other=0).to(tl.float32)
    channel = place // pixels
    factor = tl.load(scale + channel, mask=inside, other=0)
    offset = tl.load(shift + channel, mask=inside, other=0)
    tl.store(result + tl.program_id(0).to(tl.int64) * size + place, stored * factor + offset, mask=inside)
