"""The precision of a network's arithmetic."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, get_args

import torch

from fedaf.protocol import UserError

Precision = Literal["fp32", "tf32", "bf16"]


def resolve_precision(name: str, device: torch.device, *, prefer_bf16: bool) -> Precision:
    """Return the precision called ``name``.

    ``auto`` is fp32 on a CPU. On CUDA it is bf16 if ``prefer_bf16`` and the GPU supports it, else tf32.
    """
    cuda = device.type == "cuda"
    if name == "auto":
        bf16 = prefer_bf16 and cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if bf16 else "tf32" if cuda else "fp32"
    if name not in get_args(Precision):
        expected = ", ".join(["auto", *get_args(Precision)])
        raise UserError(f"unknown precision {name!r}; expected one of {expected}.", code="FEDAF-ENGINE-PRECISION")
    if name != "fp32" and not cuda:
        what = f"precision {name!r} needs a CUDA device, and this run is on {device}"
        raise UserError(f"{what}; use auto or fp32.", code="FEDAF-ENGINE-DEVICE")
    return name  # type: ignore[return-value]


@contextmanager
def settings(precision: Precision, *, benchmark: bool) -> Iterator[None]:
    """Set PyTorch's TF32 flags and cuDNN's ``benchmark`` flag within the block."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = precision != "fp32"
    cudnn.benchmark = benchmark
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


def cast(precision: Precision) -> AbstractContextManager[None]:
    """Autocast layers on CUDA to bf16 if that is the precision; losses stay float32."""
    return torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else nullcontext()
