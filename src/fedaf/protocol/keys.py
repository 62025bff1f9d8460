"""Random keys. Each draw has a key that names its purpose, so it does not depend on earlier draws."""

import hashlib
import json
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

# PyTorch's global generators serve one thread at a time. Only threads that work side by side wait for each other.
_generators, _this_thread = threading.Lock(), threading.local()


@contextmanager
def generators_held() -> Iterator[None]:
    """Keep other threads from PyTorch's global generators inside a block."""
    if getattr(_this_thread, "holds", False):
        yield
        return
    with _generators:
        _this_thread.holds = True
        try:
            yield
        finally:
            _this_thread.holds = False


@contextmanager
def generators_released() -> Iterator[None]:
    """Let other threads use PyTorch's global generators inside a block, which must not draw from them."""
    if not getattr(_this_thread, "holds", False):
        yield
        return
    _this_thread.holds = False
    _generators.release()
    try:
        yield
    finally:
        _generators.acquire()
        _this_thread.holds = True


@dataclass(frozen=True)
class Key:
    """A node in a tree of seeds. The same path from the same root gives the same draws on every machine.

    Args:
        value: The seed, at least 0 and below 2^63.
    """

    value: int

    def derive(self, *path: int | str) -> "Key":
        """Return the key of a purpose under this one.

        Args:
            path: What the key is for, for example ``key.derive("round", 3, "client-1")``.
        """
        digest = hashlib.sha256(json.dumps([self.value, *path]).encode()).digest()
        return Key(int.from_bytes(digest[:8], "little") >> 1)  # 63 bits: fits an int64 on every wire

    @contextmanager
    def seeded(self, device: torch.device | str = "cpu") -> Iterator[None]:
        """Seed PyTorch's global generators inside a block, for code that takes no generator (dropout).

        Args:
            device: Its generator is seeded too if it is a CUDA device. All generators are restored afterwards.
                Blocks of other threads wait.
        """
        device = torch.device(device)
        cuda = [device] if device.type == "cuda" else []
        with generators_held(), torch.random.fork_rng(devices=cuda):
            torch.default_generator.manual_seed(self.value)
            for each in cuda:
                with torch.cuda.device(each):
                    torch.cuda.manual_seed(self.value)
            yield

    def torch(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a PyTorch generator on ``device``, seeded with this key."""
        generator = torch.Generator(device)
        generator.manual_seed(self.value)
        return generator

    def numpy(self) -> np.random.Generator:
        """Return a NumPy generator seeded with this key."""
        return np.random.default_rng(self.value)


class Draws:
    """The draws of a computation from PyTorch's global CPU generator, for code that takes no generator (dropout).

    The computation consists of blocks. Each continues the draws of the block before it, whatever other threads draw in
    between.

    Args:
        key: The source of all draws.
    """

    def __init__(self, key: Key) -> None:
        self._state = key.torch().get_state()
        self._without: set[Hashable] = set()

    @contextmanager
    def block(self, work: Hashable) -> Iterator[None]:
        """Draw from the key inside a block.

        Args:
            work: Identifies what the block does. Blocks of other threads wait, unless this work drew nothing when it
                was done for the first time.
        """
        if work in self._without:
            yield
            return
        generator = torch.default_generator
        with generators_held():
            others = generator.get_state()
            generator.set_state(self._state)
            try:
                yield
            finally:
                before, self._state = self._state, generator.get_state()
                generator.set_state(others)
            if torch.equal(before, self._state):
                self._without.add(work)
