"""Random keys: every draw names what it is for, so its numbers do not depend on what was drawn before it."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Key:
    """A node in a tree of seeds. The same path from the same root gives the same draws on any machine."""

    value: int

    def derive(self, *path: int | str) -> "Key":
        """The key of a purpose under this one, for example ``key.derive("round", 3, "client-1")``."""
        digest = hashlib.sha256(json.dumps([self.value, *path]).encode()).digest()
        return Key(int.from_bytes(digest[:8], "little") >> 1)  # 63 bits: fits an int64 on every wire

    @contextmanager
    def seeded(self, device: torch.device | str = "cpu") -> Iterator[None]:
        """For code that takes no generator (dropout, ``reset_parameters``): inside, PyTorch's own generators, of the
        CPU and of ``device`` where that is CUDA, start from this key; afterwards they are as they were."""
        device = torch.device(device)
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            torch.default_generator.manual_seed(self.value)
            for each in cuda:
                with torch.cuda.device(each):
                    torch.cuda.manual_seed(self.value)
            yield

    def torch(self, device: torch.device | str = "cpu") -> torch.Generator:
        generator = torch.Generator(device)
        generator.manual_seed(self.value)
        return generator

    def numpy(self) -> np.random.Generator:
        return np.random.default_rng(self.value)
