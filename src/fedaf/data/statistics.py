"""Statistics of a data set: samples by class and domain, mean and deviation of its pixels, and a digest."""

import hashlib
import json

import torch

from fedaf.data.dataset import DataSet, Split

_CHUNK = 256  # images converted to floating point at a time
_DIGESTED = 256 << 20  # bytes of images in a digest: the whole data set, in most cases


def class_counts(split: Split, num_classes: int) -> list[int]:
    """Return the samples of each class."""
    return torch.bincount(split.labels, minlength=num_classes).tolist()


def domain_counts(split: Split, num_domains: int) -> list[int]:
    """Return the samples of each domain; the data set must have domains."""
    assert split.domains is not None
    return torch.bincount(split.domains, minlength=num_domains).tolist()


def channel_statistics(split: Split, *, most: int = 10_000) -> tuple[list[float], list[float], int]:
    """Return mean and standard deviation by channel of pixels in [0, 1], and the number of images they come from: at
    most ``most``, evenly spaced."""
    rows = spread(len(split), most)
    channels = split.images.shape[1]
    total, squares = torch.zeros(channels, dtype=torch.float64), torch.zeros(channels, dtype=torch.float64)
    for some in rows.split(_CHUNK):
        pixels = split.images[some].double().div_(255)
        total += pixels.sum((0, 2, 3))
        squares += pixels.square_().sum((0, 2, 3))
    count = len(rows) * split.images.shape[2] * split.images.shape[3]
    mean = total / count
    std = (squares / count - mean**2).clamp(min=0).sqrt()
    return mean.tolist(), std.tolist(), len(rows)


def spread(length: int, most: int) -> torch.Tensor:
    """Return at most ``most`` of the rows 0 to ``length - 1``, evenly spaced."""
    return torch.arange(length) if length <= most else torch.arange(most) * length // most


def fingerprint(data: DataSet) -> str:
    """Return a digest of the training split: labels, domains, clients, images, and the names of all of them.

    Of a very large split, only evenly spaced images are used.
    """
    split = data.train
    digest = hashlib.blake2b(
        json.dumps([data.classes, data.domains, list(split.images.shape)]).encode(), digest_size=16
    )
    if data.clients:
        digest.update(json.dumps(data.clients).encode())
    for numbers in (split.labels, split.domains, split.clients):
        if numbers is not None:
            digest.update(numbers.numpy().tobytes())
    image_bytes = max(1, split.images[0].numel())
    for rows in spread(len(split), _DIGESTED // image_bytes).split(max(1, (4 << 20) // image_bytes)):
        digest.update(split.images[rows].contiguous().numpy().tobytes())
    return digest.hexdigest()
