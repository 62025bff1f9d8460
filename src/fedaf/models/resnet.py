"""ResNet18 of He et al., "Deep Residual Learning for Image Recognition" (CVPR 2016), in its ImageNet layout."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from fedaf.models.builtin import ModelOptions
from fedaf.models.convnet import norm_layer
from fedaf.protocol import Task, UserError


def resnet18(task: Task, options: ModelOptions) -> "ResNet18":
    """Build ResNet18 for ``task``; its depth and width are fixed."""
    if options.norm == "instance" and min(task.height, task.width) <= 32:
        what = f"resnet18 reduces images of {task.height}x{task.width} to one pixel, which instance norm sets to zero"
        raise UserError(f"{what}; use model.norm=batch or model.norm=group.", code="FEDAF-MODEL-NORM")
    return ResNet18(task.channels, task.num_classes, norm=options.norm, groups=options.groups)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut connection."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm_layer(norm, outputs, groups)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm_layer(norm, outputs, groups)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm_layer(norm, outputs, groups))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out: Tensor = self.relu(y + self.shortcut(x))
        return out


class ResNet18(nn.Module):
    """A 7x7 stem of stride 2, max-pooling, four stages of two blocks, global average pooling and one Linear."""

    def __init__(self, channels: int, num_classes: int, *, norm: str = "batch", groups: int = 8) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for stage, (inputs, outputs) in enumerate(pairwise((64, 64, 128, 256, 512))):
            stride = 1 if stage == 0 else 2
            stages += [BasicBlock(inputs, outputs, stride, norm, groups), BasicBlock(outputs, outputs, 1, norm, groups)]
        self.features = nn.Sequential(
            nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False),
            norm_layer(norm, 64, groups),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
            *stages,
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(512, num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the convolutions by fan-out (He et al.); the other layers reset themselves."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images.contiguous(memory_format=torch.channels_last)))
        return logits
