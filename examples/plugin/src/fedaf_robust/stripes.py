"""A data set of generated images: plain or with horizontal stripes."""

from pathlib import Path

import torch

from fedaf.data.dataset import DataSet, Split
from fedaf.data.spec import DatasetSpec


def load(data_dir: Path) -> DataSet:
    """Generate the images; there are no files."""
    generator = torch.Generator().manual_seed(0)

    def split(samples: int) -> Split:
        labels = torch.arange(samples) % 2
        images = torch.randint(0, 100, (samples, 1, 8, 8), dtype=torch.uint8, generator=generator)
        images[labels == 1, :, ::2] += 100
        return Split(images, labels)

    return DataSet("stripes", split(400), split(100), 2, SPEC.mean, SPEC.std, SPEC.classes)


SPEC = DatasetSpec(
    name="stripes", shape=(1, 8, 8), num_classes=2, mean=(0.3,), std=(0.2,), classes=("plain", "striped"), load=load
)
