"""ConvNet of Zhao and Bilen, "Dataset Condensation with Distribution Matching" (WACV 2023), with BatchNorm."""

from torch import Tensor, nn

from fedaf.protocol import UserError

NORMS = ("batch", "instance", "none")


def norm_layer(norm: str, width: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(width)
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
    ) -> None:
        super().__init__()
        padding = 3 if (height, width) == (28, 28) else 1  # MNIST-like images grow to 32x32, as in the DM code
        grow = 2 * (padding - 1)
        map_height, map_width = (height + grow) >> depth, (width + grow) >> depth
        if min(map_height, map_width) < 1:
            raise UserError(
                f"a ConvNet of depth {depth} needs images of at least {2**depth}x{2**depth}, not {height}x{width}; "
                "lower model.depth."
            )
        layers: list[nn.Module] = []
        for block in range(depth):
            layers += [
                nn.Conv2d(channels if block == 0 else filters, filters, 3, padding=padding if block == 0 else 1),
                norm_layer(norm, filters),
                nn.ReLU(),
                nn.AvgPool2d(2),
            ]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Linear(filters * map_height * map_width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits
