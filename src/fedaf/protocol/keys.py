"""Random keys. Each draw has a key that names its purpose, so it does not depend on earlier draws."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


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
        """
        device = torch.device(device)
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
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
