"""Grid files whose runs take a fraction of a second each, on random pictures with a pattern per class."""

import subprocess
import sys
from pathlib import Path

import numpy as np

FIXED = """\
preset = "quick"
data.name = "npz:{data}"
model = {{ width = 4, depth = 2 }}
run = {{ rounds = 2, device = "cpu", threads = 1 }}
partition.clients = 2
"""
AVERAGING = "method.local_epochs = 1\n"
CONDENSING = "method.ipc = 1\nmethod.local_steps = 1\nmethod.server_epochs = 1\nmethod.real_batch = 8\n"


def pictures(path: Path) -> None:
    """Write 160 training and 40 test pictures of 8 x 8 pixels in four classes."""
    rng, arrays = np.random.default_rng(0), {}
    patterns = rng.integers(0, 256, (4, 8, 8, 1))
    for split, count in (("train", 160), ("test", 40)):
        labels = np.arange(count) % 4
        noisy = patterns[labels] + rng.normal(0, 60, (count, 8, 8, 1))
        arrays |= {f"x_{split}": noisy.clip(0, 255).astype(np.uint8), f"y_{split}": labels}
    np.savez(path, **arrays)


def grid_file(folder: Path, rest: str, *, fixed: str = FIXED) -> Path:
    """Write a grid file with the fixed settings above and the given tables, and its data."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "pictures.npz").exists():
        pictures(folder / "pictures.npz")
    path = folder / "grid.toml"
    path.write_text(fixed.format(data=folder / "pictures.npz") + rest)
    return path


def swept(folder: Path, grid: Path) -> Path:
    """Run a sweep in ``out`` of a folder, and keep what it printed in ``said``."""
    line = [sys.executable, "-m", "fedaf", "sweep", str(grid), "--out", str(folder / "out")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    (folder / "said").write_text(done.stdout)
    return folder
