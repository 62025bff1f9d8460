"""From the names in a configuration to an engine on a device."""

import torch

from fedaf.engine.allocation import keep_freed_memory
from fedaf.engine.eager import EagerEngine
from fedaf.engine.precision import resolve_precision
from fedaf.engine.registry import ENGINES
from fedaf.protocol import UserError

__all__ = ["EagerEngine", "make_engine", "resolve_device"]


def resolve_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` prefers cuda, then mps, then cpu.

    Raises:
        UserError: If the name is unknown, or this machine has no such device.
    """
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    counts = {"cuda": cuda, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        return torch.device(next(kind for kind, count in counts.items() if count))
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in counts:
        expected = "expected one of auto, cpu, cuda, cuda:N, mps"
        raise UserError(f"unknown device {name!r}; {expected}.", code="FEDAF-DEVICE-UNKNOWN")
    if device.type != "cpu" and (device.index or 0) >= counts[device.type]:
        what = f"this machine has {counts[device.type]} {device.type} devices, so {name!r} is not available"
        raise UserError(f"{what}; use --device auto.", code="FEDAF-DEVICE-MISSING")
    return device


def make_engine(
    name: str, device: torch.device, *, precision: str = "auto", memory_budget: int | None = None
) -> EagerEngine:
    """Create an engine. On a CPU, the process then keeps the memory that it frees.

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
        what = f"engine {name!r} needs a CUDA device, and this run is on {device}"
        raise UserError(f"{what}; use auto or eager.", code="FEDAF-ENGINE-DEVICE")
    if device.type == "cpu":
        keep_freed_memory()
    return engine(device, memory_budget, resolve_precision(precision, device, prefer_bf16=engine.prefers_bf16))
