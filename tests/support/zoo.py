"""Built-in models by name, and small custom models of many kinds.

A custom model is called with (in_channels, image_size, num_classes).
"""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.models import builtin
from fedaf.protocol import Key, Task

Size = int | tuple[int, int]


def build(name: str, task: Task, key: Key, *, depth: int, width: int, norm: str, groups: int = 8) -> nn.Module:
    """Build a built-in model."""
    return builtin.build(name, task, SimpleNamespace(depth=depth, width=width, norm=norm, groups=groups), key)


def pixels(size: Size) -> int:
    return size * size if isinstance(size, int) else math.prod(size)


class View(nn.Module):
    """Flattens with ``view``, which needs contiguous input."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1)


def mlp(channels: int, size: Size, classes: int) -> nn.Module:
    return nn.Sequential(View(), nn.Linear(channels * pixels(size), 12), nn.ReLU(), nn.Linear(12, classes))


def plain_convnet(channels: int, size: Size, classes: int, *norm: nn.Module) -> nn.Module:
    layers = [nn.Conv2d(channels, 4, 3, padding=1), *norm, nn.ReLU(), nn.AdaptiveAvgPool2d(4), View()]
    return nn.Sequential(*layers, nn.Linear(64, classes))


def group_norm(channels: int, size: Size, classes: int) -> nn.Module:
    return plain_convnet(channels, size, classes, nn.GroupNorm(2, 4))


def instance_norm(channels: int, size: Size, classes: int) -> nn.Module:
    return plain_convnet(channels, size, classes, nn.InstanceNorm2d(4, affine=True, track_running_stats=True))


def dropout(channels: int, size: Size, classes: int) -> nn.Module:
    return plain_convnet(channels, size, classes, nn.BatchNorm2d(4), nn.Dropout(0.5))


class ViT(nn.Module):
    """Patches, a class token, one layer of attention, LayerNorm."""

    def __init__(self, channels: int, size: Size, classes: int) -> None:
        super().__init__()
        width = 8
        self.patches = nn.Conv2d(channels, width, 4, stride=4)
        self.token = nn.Parameter(torch.empty(1, 1, width))
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.token, std=0.02)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + F.gelu(self.hidden(self.norm2(x)))
        logits: Tensor = self.head(x[:, 0])
        return logits


class LastFirst(nn.Module):
    """The classifier is defined before the layer it follows, and called by keyword."""

    def __init__(self, channels: int, size: Size, classes: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(6, classes)
        self.hidden = nn.Linear(channels * pixels(size), 6)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(input=torch.tanh(self.hidden(images.flatten(1))))
        return logits


class Functional(nn.Module):
    """Computes with functions; only the last step is a layer."""

    def __init__(self, channels: int, size: Size, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4, channels, 3, 3))
        self.scale = nn.Parameter(torch.empty(4))
        self.last = nn.Linear(4 * pixels(size), classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.normal_(std=0.3)
            self.scale.fill_(1)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(F.conv2d(images, self.weight, padding=1) * self.scale.view(-1, 1, 1))
        x = F.dropout(x, 0.2, training=self.training)
        logits: Tensor = self.last(x.flatten(1))
        return logits


ALL = {
    "mlp": mlp,
    "plain_convnet": plain_convnet,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "dropout": dropout,
    "ViT": ViT,
    "LastFirst": LastFirst,
    "Functional": Functional,
}
