"""CutMix (Yun et al., ICCV 2019): replace a rectangle of an image by the same rectangle of another image."""

import torch
from torch import Tensor

DRAWS = 4  # random numbers that each image needs


def cutmix(images: Tensor, targets: Tensor, draws: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Mix a share of the images of a batch with their neighbours in the batch.

    Args:
        images: Images [N, C, H, W], in random order.
        targets: Class probabilities [N, classes].
        draws: Random numbers [N, ``DRAWS``], uniform on [0, 1).
        share: Probability that an image is mixed.

    Returns:
        The images, and their class probabilities: in proportion to the area that comes from each image.
    """
    height, width = images.shape[2:]
    mixed, area, *centre = draws.unsqueeze(2).unbind(1)  # each [N, 1]
    side = area.sqrt() * (mixed < share)  # of the rectangle, relative to the image's; its area is uniform on [0, 1)
    inside = [
        ((torch.arange(size, device=images.device) + 0.5) / size - middle).abs() < side / 2
        for size, middle in zip((height, width), centre, strict=True)
    ]
    replaced = inside[0].unsqueeze(2) & inside[1].unsqueeze(1)  # [N, H, W]
    kept = 1 - replaced.flatten(1).float().mean(1, keepdim=True)
    mixed_images = torch.where(replaced.unsqueeze(1), images.roll(1, 0), images)
    return mixed_images, kept * targets + (1 - kept) * targets.roll(1, 0)
