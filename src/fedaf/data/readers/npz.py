"""Data sets in .npz files. Uncompressed files are opened in place; compressed files and files with separate arrays for
each domain are converted."""

from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from fedaf.data.problems import incomplete, wrong_shape
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import Damaged, Npz, Writer
from fedaf.data.storage.stored import check_images, numbers

_PARTS = ("train", "test")


def source(path: Path) -> Source | None:
    """Return how to convert a file, or ``None`` if it can be opened in place.

    Raises:
        Damaged: If the file is damaged, or has no ``x_train``.
    """
    with Npz(path) as file:
        if "x_train" not in file:
            return Source("npz by domain 1", path, [path], partial(_join, path, _domains(file)))
        members = [check_images(file, f"x_{part}", path) for part in _PARTS]
    in_place = all(member.stored for member in members)
    return None if in_place else Source("npz 1", path, [path], partial(_repack, path))


def _repack(path: Path, writer: Writer) -> None:
    with Npz(path) as file:
        for part in _PARTS:
            writer.images(f"x_{part}", file.member(f"x_{part}").shape[1:], file.rows(f"x_{part}"))
        for key in ("y_train", "y_test", "domain_train", "domain_test", "classes", "domains"):
            if key in file or key.startswith("y_"):
                writer.array(key, file.array(key))


def _domains(file: Npz) -> list[str]:
    """Return the domains of a file with arrays such as ``<domain>_x_train``, in the file's order."""
    found = sorted(name.removesuffix("_x_train") for name in file.names if name.endswith("_x_train"))
    domains = [str(name) for name in file.array("domains").ravel()] if "domains" in file else found
    if not found or not domains:
        raise Damaged(f"{file.path} has no x_train")
    keys = [f"{domain}_{kind}_{part}" for kind in "xy" for part in _PARTS for domain in domains]
    if missing := [key for key in keys if key not in file]:
        raise incomplete(f"{file.path} has no {missing[0]}", "every domain needs one")
    images = keys[: len(keys) // 2]
    shapes = {key: check_images(file, key, file.path).shape[1:] for key in images}
    for key, shape in shapes.items():
        if shape != shapes[images[0]]:
            raise wrong_shape(f"{key} in {file.path} has images of {shape}, but {images[0]} of {shapes[images[0]]}.")
    return domains


def _join(path: Path, domains: list[str], writer: Writer) -> None:
    """Write the domains one after the other, with the domain number of each image."""
    with Npz(path) as file:
        for part in _PARTS:
            images = [f"{domain}_x_{part}" for domain in domains]
            counts = [file.member(key).shape[0] for key in images]
            labels = [numbers(file, f"{domain}_y_{part}", n, path) for domain, n in zip(domains, counts, strict=True)]
            shape = file.member(images[0]).shape[1:]
            writer.images(f"x_{part}", shape, chain.from_iterable(file.rows(key) for key in images))
            writer.array(f"y_{part}", torch.cat(labels).numpy())
            writer.array(f"domain_{part}", np.repeat(np.arange(len(domains)), counts))
        writer.texts("domains", domains)
        if "classes" in file:
            writer.array("classes", file.array("classes"))
