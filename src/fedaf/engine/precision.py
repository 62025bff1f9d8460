"""How exactly networks compute."""

from collections.abc import Iterator
from contextlib import contextmanager
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
def computing_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Inside, convolutions and matrix products are done in ``precision``; parameters and losses stay float32."""
    if device.type != "cuda":
        yield
        return
    convolutions, matrices = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    coarse = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = coarse
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, matrices
