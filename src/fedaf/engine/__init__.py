"""Where and how a phase computes."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaf.engine.choice import ENGINES, make_engine
    from fedaf.engine.device import resolve_device
    from fedaf.engine.eager import EagerEngine

__all__ = ["ENGINES", "EagerEngine", "make_engine", "resolve_device"]


def __getattr__(name: str) -> Any:
    """Import PyTorch on first use: ``fedaf.engine.registry`` is read by ``--help``."""
    if name not in __all__:
        raise AttributeError(f"module 'fedaf.engine' has no attribute {name!r}")
    from fedaf.engine import choice, device, eager

    return getattr({"EagerEngine": eager, "resolve_device": device}.get(name, choice), name)
