"""Your own model: any PyTorch network, compared with the built-in ConvNet.

    python examples/custom_model.py

A model is a function of the image's channels and size and the number of classes. The command line takes it as well:
`cd examples; fedaf run --model custom_model:patch_mixer`. The network is checked before the run starts.
"""

import argparse

from torch import Tensor, nn

import fedaf


class Mixer(nn.Module):
    """Mixes the patches of an image, then the channels of each patch (MLP-Mixer, Tolstikhin et al. 2021)."""

    def __init__(self, patches: int, channels: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(2))
        self.patches = nn.Sequential(nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches))
        self.channels = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.patches(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class Transpose(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def patch_mixer(in_channels: int, image_size: int, num_classes: int) -> nn.Module:
    """Return an MLP-Mixer on patches of 2x2 pixels.

    FedAF matches the input of the last Linear layer, and draws fresh weights in every step. Both need no code here.
    """
    width = 64
    to_patches = nn.Sequential(nn.Conv2d(in_channels, width, 2, stride=2), nn.Flatten(2))
    mixers = [Mixer((image_size // 2) ** 2, width) for _ in range(2)]
    return nn.Sequential(to_patches, Transpose(), *mixers, Mean(), nn.Linear(width, num_classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    for name, model in (("MLP-Mixer", patch_mixer), ("ConvNet", "convnet")):
        result = fedaf.run(
            model=model,
            method="fedaf",
            preset="quick",  # short rounds
            alpha=0.1,
            clients=5,
            rounds=rounds,
            settings={"model.width": 32},  # of the ConvNet; our own model does not use it
        )
        parameters = sum(p.numel() for p in result.model.parameters())
        print(f"{name}: {parameters:,} parameters, accuracy by round {[round(a, 1) for a in result.curve]}")


if __name__ == "__main__":
    main()
