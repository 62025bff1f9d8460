"""How exactly networks compute."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from fedaf.protocol import UserError

Precision = Literal["fp32", "tf32", "bf16"]


def resolve_precision(name: str, device: torch.device, *, fast: bool) -> Precision:
    """``auto`` is exact on a CPU; on a GPU it is what the hardware is fast at: bf16, or tf32 without ``fast``."""
    cuda = device.type == "cuda"
    if name == "auto":
        half = fast and cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if half else "tf32" if cuda else "fp32"
    if name not in ("fp32", "tf32", "bf16"):
        raise UserError(f"unknown precision {name!r}; allowed is auto, fp32, tf32 or bf16.")
    if name != "fp32" and not cuda:
        raise UserError(f"precision {name!r} needs a CUDA device, and this run is on {device}; use auto or fp32.")
    return name  # type: ignore[return-value]


@contextmanager
def settings(precision: Precision, *, try_algorithms: bool) -> Iterator[None]:
    """Inside, products of float32 on a GPU are rounded to tf32 or are not, and cuDNN tries its algorithms or does not;
    afterwards PyTorch's settings are as they were."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = precision != "fp32"
    cudnn.benchmark = try_algorithms
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


def cast(precision: Precision) -> AbstractContextManager[None]:
    """Inside, layers of a network on a GPU compute in bf16 where that is the precision; losses stay float32."""
    return torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext()
