"""From the names in a configuration to an engine on a device."""

import torch

from fedaf.engine.device import resolve_device
from fedaf.engine.eager import EagerEngine
from fedaf.engine.precision import resolve_precision
from fedaf.engine.registry import ENGINES
from fedaf.protocol import UserError

__all__ = ["EagerEngine", "make_engine", "resolve_device"]


def make_engine(
    name: str, device: torch.device, *, precision: str = "auto", memory_budget: int | None = None
) -> EagerEngine:
    """Create an engine.

    Args:
        name: A name in ``ENGINES``, or ``auto``: ``cuda-graphs`` on CUDA, else ``eager``.
        device: The device that it computes on.
        precision: ``auto``, ``fp32``, ``tf32`` or ``bf16``.
        memory_budget: Bytes that one step may use; ``None`` chooses by device.

    Raises:
        UserError: If the name is unknown, or the device does not support the engine or the precision.
    """
    if name == "auto":
        name = "cuda-graphs" if device.type == "cuda" else "eager"
    engine = ENGINES.find(name)
    if engine.needs_cuda and device.type != "cuda":
        raise UserError(
            f"engine {name!r} needs a CUDA device, and this run is on {device}; use auto or eager.",
            code="FEDAF-ENGINE-DEVICE",
        )
    return engine(device, memory_budget, resolve_precision(precision, device, prefer_bf16=engine.prefers_bf16))
