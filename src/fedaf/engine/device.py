"""From the word a user gives to a device that is there."""

import torch

from fedaf.protocol import UserError


def resolve_device(name: str) -> torch.device:
    """``auto`` takes cuda, then mps, then cpu; any other name must be there."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"unknown device {name!r}; allowed is auto, cpu, cuda, cuda:N or mps.")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        raise UserError(f"device {name!r} is not on this machine, which has {found} CUDA devices; try --device auto.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' is not on this machine; try --device auto.")
    return device
