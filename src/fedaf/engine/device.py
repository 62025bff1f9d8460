"""From a device name to a device of this machine."""

import torch

from fedaf.protocol import UserError


def resolve_device(name: str) -> torch.device:
    """Return the device called ``name``; ``auto`` prefers cuda, then mps, then cpu.

    Raises:
        UserError: If the name is unknown, or this machine has no such device.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(
            f"unknown device {name!r}; expected one of auto, cpu, cuda, cuda:N, mps.", code="FEDAF-DEVICE-UNKNOWN"
        )
    available = {
        "cpu": 1,
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
    }[device.type]
    if device.type != "cpu" and (device.index or 0) >= available:
        raise UserError(
            f"this machine has {available} {device.type} devices, so {name!r} is not available; use --device auto.",
            code="FEDAF-DEVICE-MISSING",
        )
    return device
