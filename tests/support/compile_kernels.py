"""Compile every kernel for a GPU that this machine need not have, and print the names of the kernels."""

import sys
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit


class Absent:
    """A driver that only names the GPU to compile for."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def only_compile(capability: int) -> list[str]:
    """Make launches stop after compilation, and return the list that their kernels are added to."""
    names: list[str] = []
    launch = jit.JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        launch(self, *args, grid=grid, warmup=True, **options)
        names.append(self.fn.__name__)

    driver.set_active(Absent(capability))
    jit.JITFunction.run = compile_only
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    return names


def main(capability: int, channels: int, dtype: torch.dtype) -> None:
    names = only_compile(capability)

    from fedaf.kernels import pixels as pixel_kernels
    from fedaf.kernels.blocks import Running
    from fedaf.kernels.launch import Block, FirstBlock, Frame, Normalisation

    def vector() -> torch.Tensor:
        return torch.rand(channels)

    def maps(side: int) -> torch.Tensor:
        return torch.randn(4, channels, side, side).to(dtype).contiguous(memory_format=torch.channels_last)

    images = torch.randn(4, 3, 32, 32)
    frame = Frame(images.shape, images.stride(), images.dtype, 1)
    norms = Normalisation(vector(), vector(), vector(), vector(), vector(), 1e-5), Normalisation(vector())
    running = Running(vector(), vector(), vector(), torch.zeros((), dtype=torch.int64), 0.1)
    pixel_kernels.take(
        torch.zeros(4, 3, 32, 32, dtype=torch.uint8),
        torch.zeros(2, dtype=torch.int64),
        torch.ones(3),
        torch.ones(3),
    )
    first = FirstBlock.of(images, torch.randn(channels, 3, 3, 3), frame, dtype)
    gram = first.gram()
    first.statistics(gram, running)
    later = Block(maps(16), (4, channels, 8, 8))
    later.statistics(running)
    for norm in norms:
        first.pooled(norm, torch.channels_last)
        first.gradients(maps(16), norm, gram if norm.gamma is not None else None)
        first.image_gradient(maps(16), norm, frame)
        later.pooled(norm, torch.contiguous_format)
        totals = later.sums(maps(8), norm)
        later.source_gradient(maps(8), norm, None)
        if norm.gamma is not None:
            later.source_gradient(maps(8), norm, totals)
    print(*sorted(set(names)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), getattr(torch, sys.argv[3]))
