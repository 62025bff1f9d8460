"""Where and how a phase computes."""

from typing import TYPE_CHECKING, Any

__all__ = ["EagerEngine", "make_engine", "resolve_device"]

if TYPE_CHECKING:
    from fedaf.engine.choice import EagerEngine, make_engine, resolve_device


def __getattr__(name: str) -> Any:
    """Import PyTorch only when an engine is needed: ``fedaf.engine.registry`` must list names without it."""
    if name in __all__:
        from fedaf.engine import choice

        return getattr(choice, name)
    raise AttributeError(f"module 'fedaf.engine' has no attribute {name!r}")
