"""Generated colour images with the spectrum of photographs, for tests of the copy audit."""

import torch

from fedaf.protocol import Key, Shard

SIDE = 32


def photographs(number: int, seed: int = 0) -> Shard:
    """Return one class of images: a common part, and a part of its own in each image.

    Amplitudes fall as a power of the frequency, from 1 (fine texture) to 2.5 (smooth), which differs by image.
    """
    generator = Key(seed).derive("photographs").torch()
    frequency = torch.fft.fftfreq(SIDE).square().unsqueeze(1) + torch.fft.rfftfreq(SIDE).square()
    frequency = frequency.sqrt().clamp(min=1 / SIDE)

    def drawn(count: int, generator: torch.Generator) -> torch.Tensor:
        power = 1 + 1.5 * torch.rand(count, 1, 1, 1, generator=generator)
        white = torch.randn(count, 4, SIDE, SIDE, generator=generator)
        smooth = torch.fft.irfft2(torch.fft.rfft2(white) / frequency**power, s=(SIDE, SIDE))
        colours = smooth[:, :1] + 0.5 * smooth[:, 1:]
        return colours / colours.std((1, 2, 3), keepdim=True)

    common = drawn(1, Key(0).derive("common").torch())
    images = 128 + 50 * (0.5 * common + drawn(number, generator))
    return Shard(images.round().clamp(0, 255).to(torch.uint8), torch.zeros(number, dtype=torch.int64), 1)
