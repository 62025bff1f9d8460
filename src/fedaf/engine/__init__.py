"""Where and how a phase computes."""

from fedaf.engine.device import resolve_device
from fedaf.engine.eager import EagerEngine

__all__ = ["EagerEngine", "resolve_device"]
