"""How images are divided into batches."""


def batch_sizes(images: int, batch: int) -> list[int]:
    """Return the sizes of the batches of one epoch.

    A last batch of a single image is dropped, because BatchNorm has no variance for it.

    Args:
        images: Number of images.
        batch: Images of a full batch.
    """
    rest = images % batch
    return [batch] * (images // batch) + [rest] * (rest > 1)


def batch_count(images: int, batch: int) -> int:
    """Return the number of batches of one epoch, without listing them."""
    return images // batch + (images % batch > 1)
