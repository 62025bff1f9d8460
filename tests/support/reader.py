"""A reader who follows a page: saves its files, and runs its commands and Python blocks in order."""

import contextlib
import io
import logging
import os
import re
import shlex
import subprocess
import sys
from logging.handlers import BufferingHandler
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedaf.cli import main as cli
from support import ROOT
from support.datafiles import CIFAR10_FILES, cifar_batch, python2_pickle, write_idx, write_tree
from support.pages import RUN, Block

_SITE = ROOT / "tests" / "support" / "tiny_site"


def follow(found: list[Block], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a page in order, in a folder that has what the page assumes."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    lay_out(folder, "\n".join(block.code for block in found))
    before, threads = set(sys.modules), torch.get_num_threads()
    dropped = BufferingHandler(100)  # trackers that raised
    logging.getLogger("fedaf.federation.observer").addHandler(dropped)
    try:
        for block in found:
            if block.reason is None and (block.language in RUN or block.file):
                run(block)
        assert [text for record in dropped.buffer if "is dropped" in (text := record.getMessage())] == []
    finally:
        logging.getLogger("fedaf.federation.observer").removeHandler(dropped)
        torch.set_num_threads(threads)
        logging.getLogger("fedaf").setLevel(logging.NOTSET)  # -q and -v are for one command
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def lay_out(folder: Path, text: str) -> None:
    """Put the files into a folder that a page assumes its reader to have, small and in their real formats."""
    for word, write in _FILES.items():
        if re.search(rf"(?<![\w/]){re.escape(word)}\b", text):
            write(folder)


def run(block: Block) -> None:
    """Run a block in the current folder, or save it if it begins with the name of a file.

    Raises:
        AssertionError: A command or the Python code failed.
    """
    if block.file:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(block.code)
    elif block.language == "python":
        exec(compile(block.code, f"line {block.line}", "exec"), {"__name__": "__main__"})
    elif block.language == "bash":
        for line in re.sub(r"\\\n\s*", "", block.code).splitlines():
            if line.strip() and not line.startswith("#"):
                _command(line)


def _command(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "cd":
        os.chdir(words[1])
    elif words[0] == "fedaf" and not {"&&", "|", "&", "deploy", "--jobs"} & set(words):
        _fedaf(words[1:], line)
    else:
        small = [] if "pytest" in words else [str(_SITE)]  # tests of a page are small already, and check results
        path = os.pathsep.join([*small, str(ROOT / "src"), "."])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            ["bash", "-ec", line], env=environment, capture_output=True, text=True, timeout=280, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def _fedaf(words: list[str], line: str) -> None:
    """Run the command in this process, which saves the seconds that importing PyTorch takes.

    Commands that start further processes are not run here: those would not be small.
    """
    target = None
    if ">" in words:
        words, (target,) = words[: words.index(">")], words[words.index(">") + 1 :]
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["fedaf", *words]
    code: object = None
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as exit:
        code = exit.code
    finally:
        sys.argv = before
    assert not code, f"{line}\n{out.getvalue()[-2000:]}\n{err.getvalue()[-2000:]}"
    if target:
        Path(target).write_text(out.getvalue())


def _stripes(count: int, size: int, channels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images of two classes that a network can tell apart."""
    labels = np.arange(count) % 2
    images = np.random.default_rng(seed).integers(0, 100, (count, size, size, channels), dtype=np.uint8)
    images[labels == 1, ::2] += 150
    return images, labels


def _photos(folder: Path, root: str, classes: tuple[str, ...] = ("cat", "dog"), parts: tuple[str, ...] = ("",)) -> None:
    for part in parts:
        images, labels = _stripes(160, 16, 3)
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            path = folder / root / part / classes[label] / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)


def _scans(folder: Path, root: str = "scans", columns: str = "image,grade,hospital") -> None:
    images, labels = _stripes(160, 16, 3)
    rows = [columns]
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / root / "images" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        rows.append(f"{number:03d},{'high' if label else 'low'},{'north' if number % 3 else 'south'}")
    (folder / root / "labels.csv").write_text("\n".join(rows) + "\n")


def _cifar10(folder: Path) -> None:
    for seed, name in enumerate(CIFAR10_FILES):
        path = folder / "data" / "cifar-10-batches-py" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(python2_pickle(cifar_batch(60, b"labels", 10, seed=seed)))


def _medmnist(folder: Path) -> None:
    (x, y), (xt, yt) = _stripes(120, 28, 3), _stripes(40, 28, 3, seed=1)
    arrays = {"train_images": x, "train_labels": y[:, None], "test_images": xt, "test_labels": yt[:, None]}
    np.savez(folder / "pathmnist.npz", **arrays, val_images=xt, val_labels=yt[:, None])


def _parquet(folder: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    images, labels = _stripes(80, 16, 1)
    encoded = []
    for image in images:
        data = io.BytesIO()
        Image.fromarray(image[:, :, 0]).save(data, "PNG")
        encoded.append({"bytes": data.getvalue(), "path": None})
    writers = [f"w{number % 4}" for number in range(80)]
    (folder / "femnist").mkdir()
    table = pyarrow.table({"image": encoded, "character": labels.astype(int), "writer_id": writers})
    parquet.write_table(table, folder / "femnist" / "train-00000-of-00001.parquet")


def _pacs(folder: Path) -> None:
    domains = ("art_painting", "cartoon", "photo", "sketch")
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    write_tree(folder / "data" / "PACS", {f"{domain}/{name}": 12 for domain in domains for name in classes})


def _scanned_digits(folder: Path) -> None:
    from sklearn.datasets import load_digits

    bundled = load_digits()
    for number in range(60):
        path = folder / "scanned-digits" / str(bundled.target[number]) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((bundled.images[number] * 15).astype(np.uint8)).save(path)
    for name in ("a.png", "b.png"):
        Image.fromarray((bundled.images[0] * 15).astype(np.uint8)).save(folder / name)


_FILES = {
    "cifar10": _cifar10,
    "fashion-mnist": lambda folder: write_idx(folder / "fashion-mnist", train=200, test=50),
    "folder:photos": lambda folder: _photos(folder, "photos"),
    "folder:digits": lambda folder: _photos(folder, "digits", ("0", "1"), ("mnist", "usps")),
    "folder:scans": _scans,
    "folder:ham10000": lambda folder: _scans(folder, "ham10000", "image_id,dx,hospital"),
    "npz:pathmnist.npz": _medmnist,
    "parquet:femnist": _parquet,
    "pacs": _pacs,
    "scanned-digits": _scanned_digits,
}
