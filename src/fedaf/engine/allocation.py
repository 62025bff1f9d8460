"""How a process allocates large blocks of CPU memory.

By default, the allocator of glibc returns every large block to the system when it is freed. The next step allocates it
again, and the system clears it page by page. On a CPU this takes a fifth to a third of a training step.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # parameters of mallopt(3)
_NEVER = -1
_DEFAULT_MMAPS = 65536
_LARGEST_THRESHOLD = 32 << 20  # which glibc adjusts the threshold to, once such a block was freed


def keep_freed_memory() -> None:
    """Let this process keep the memory that it frees, for later steps. Does nothing without glibc."""
    _set({_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER})


def return_freed_memory() -> None:
    """Return large blocks to the system when they are freed, as glibc does in a program that has freed some."""
    values = {_MMAP_MAX: _DEFAULT_MMAPS, _MMAP_THRESHOLD: _LARGEST_THRESHOLD, _TRIM_THRESHOLD: 2 * _LARGEST_THRESHOLD}
    _set(values)
    return_free_memory()


def return_free_memory() -> bool:
    """Return to the system what is free now. ``False`` means that this C library cannot."""
    return _call("malloc_trim", 0)


def _set(values: dict[int, int]) -> None:
    for parameter, value in values.items():
        _call("mallopt", parameter, value)


def _call(function: str, *arguments: int) -> bool:
    try:
        getattr(ctypes.CDLL(None), function)(*arguments)
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return False
    return True
