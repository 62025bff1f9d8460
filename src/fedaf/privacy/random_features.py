"""Features of images under random networks, for audits."""

import torch
from torch import Tensor

from fedaf.data.pixels import normalise
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import estimate_statistics, reference_images
from fedaf.models.weights import initialise
from fedaf.protocol import Key, Method

_BATCH = 256


class RandomFeatures:
    """Features of images under several random networks, in one vector per image.

    Args:
        method: Its model is drawn anew for each network; trained weights are not used.
        device: Where to compute.
        networks: Number of networks.
        key: Source of their weights.
    """

    def __init__(self, method: Method, device: torch.device, networks: int, key: Key) -> None:
        self._task, self._device = method.task, device
        self._backbones = []
        for number in range(networks):
            own = key.derive(number)
            model = initialise(method.build_model(own), own)
            estimate_statistics(model, [reference_images(self._task, own.derive("statistics"))])
            self._backbones.append(Backbone(model, self._task, device, method.classifier))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the features [n, D] of uint8 images, on the CPU."""
        return torch.cat([self._features(part) for part in images.split(_BATCH)])

    def _features(self, images: Tensor) -> Tensor:
        pixels = normalise(images.to(self._device), self._task.mean, self._task.std)
        found = [backbone.features(backbone.model.state_dict(), pixels) for backbone in self._backbones]
        return torch.cat([each.float() for each in found], 1).cpu()


def class_means(features: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the mean feature of each class [classes, D]; NaN for a class without images."""
    sums = torch.zeros(num_classes, features.shape[1], dtype=torch.float64).index_add_(0, labels, features.double())
    return sums / torch.bincount(labels, minlength=num_classes).unsqueeze(1)
