"""ConvNet of Zhao and Bilen, "Dataset Condensation with Distribution Matching" (WACV 2023), with BatchNorm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaf.kernels import fused
from fedaf.models.builtin import ModelOptions
from fedaf.protocol import Task, UserError

NORMS = ("batch", "group", "instance", "none")


def convnet(task: Task, options: ModelOptions) -> "ConvNet":
    """Build the ConvNet of ``depth`` blocks and ``width`` filters for ``task``."""
    return ConvNet(
        *task.image_shape,
        task.num_classes,
        depth=options.depth,
        filters=options.width,
        norm=options.norm,
        groups=options.groups,
    )


def norm_layer(norm: str, width: int, groups: int) -> nn.Module:
    """Return the normalisation of ``width`` channels; ``groups`` is for GroupNorm only.

    Raises:
        UserError: The number of groups does not divide the number of channels.
    """
    if norm == "batch":
        return nn.BatchNorm2d(width)
    if norm == "group":
        if width % groups:
            fitting = ", ".join(str(number) for number in range(1, width + 1) if width % number == 0)
            what = f"{width} channels cannot be divided into model.groups = {groups} groups of equal size"
            raise UserError(f"{what}; set model.groups to one of {fitting}.", code="FEDAF-MODEL-NORM")
        return nn.GroupNorm(groups, width)
    if norm == "instance":
        return nn.GroupNorm(width, width)  # one group per channel
    return nn.Identity()


class ConvNet(nn.Module):
    """``depth`` blocks of 3x3 convolution, norm, ReLU and 2x2 average pooling, then one Linear on the flat map."""

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        num_classes: int,
        *,
        depth: int = 3,
        filters: int = 128,
        norm: str = "batch",
        groups: int = 8,
    ) -> None:
        super().__init__()
        padding = 3 if (height, width) == (28, 28) else 1  # MNIST-like images grow to 32x32, as in the DM code
        grow = 2 * (padding - 1)
        map_height, map_width = (height + grow) >> depth, (width + grow) >> depth
        if min(map_height, map_width) < 1:
            what = f"a ConvNet of depth {depth} needs images of at least {2**depth}x{2**depth}, not {height}x{width}"
            raise UserError(f"{what}; lower model.depth.", code="FEDAF-MODEL-DEPTH")
        layers: list[nn.Module] = []
        for _ in range(depth):
            convolution = nn.Conv2d(channels, filters, 3, padding=padding)
            layers += [convolution, norm_layer(norm, filters, groups), nn.ReLU(), nn.AvgPool2d(2)]
            channels, padding = filters, 1
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Linear(filters * map_height * map_width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        maps, layers = images, list(self.features)
        for start in range(0, len(layers) - 1, 4):
            maps = _block(maps, *layers[start : start + 4], last=start + 4 == len(layers) - 1)
        logits: Tensor = self.classifier(maps.flatten(1))
        return logits


def _block(maps: Tensor, conv: nn.Module, norm: nn.Module, _relu: nn.Module, pool: nn.Module, *, last: bool) -> Tensor:
    """Compute the four layers of a block in as few passes over memory as possible.

    The last block's output is contiguous, because it is flattened next.
    """
    assert isinstance(conv, nn.Conv2d)
    if fused.supports(maps, conv, norm):
        layout = torch.contiguous_format if last else torch.channels_last
        return fused.conv_norm_relu_pool(maps, conv, norm, memory_format=layout)
    maps = maps.contiguous(memory_format=torch.channels_last)
    if isinstance(norm, nn.BatchNorm2d) and not norm.training:  # folded into the convolution
        assert conv.bias is not None
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        shift = norm.bias + (conv.bias - norm.running_mean) * scale
        maps = F.conv2d(maps, conv.weight * scale.view(-1, 1, 1, 1), shift, padding=conv.padding)
    else:
        maps = norm(conv(maps))
    pooled: Tensor = pool(maps.relu_())
    return pooled
