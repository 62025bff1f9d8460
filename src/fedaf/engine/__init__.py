"""Where and how a phase computes."""

from fedaf.engine.choice import ENGINES, make_engine
from fedaf.engine.device import resolve_device
from fedaf.engine.eager import EagerEngine

__all__ = ["ENGINES", "EagerEngine", "make_engine", "resolve_device"]
