"""Which engine a run gets."""

import torch

from fedaf.engine.cuda_graphs import CudaGraphEngine
from fedaf.engine.eager import EagerEngine
from fedaf.engine.precision import resolve_precision
from fedaf.protocol import UserError

ENGINES = ("auto", "eager", "compiled")


def make_engine(
    name: str, device: torch.device, *, precision: str = "auto", memory_budget: int | None = None
) -> EagerEngine:
    """``auto`` is the fast engine where the device is one it is for; its ``memory_budget`` is in bytes."""
    if name not in ENGINES:
        raise UserError(f"unknown engine {name!r}; allowed is {', '.join(ENGINES)}.")
    if name == "compiled" and device.type != "cuda":
        raise UserError(f"engine 'compiled' needs a CUDA device, and this run is on {device}; use auto or eager.")
    fast = name != "eager" and device.type == "cuda"
    engine = CudaGraphEngine if fast else EagerEngine
    return engine(device, memory_budget, resolve_precision(precision, device, fast=fast))
