"""Data sets in .npz files. Uncompressed files are opened in place; compressed files and files with separate arrays for
each domain are converted."""

from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from fedaf.data.labels import one_per_image
from fedaf.data.problems import incomplete, wrong_shape
from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import OPTIONAL, Damaged, Npz, Writer
from fedaf.data.storage.stored import check_images, note_unused

_PARTS = ("train", "test")


def source(path: Path) -> Source | None:
    """Return how to convert a file, or ``None`` if it can be opened in place.

    Raises:
        Damaged: If the file is damaged, or has no ``x_train``.
    """
    with Npz(path) as file:
        if file.name_of("x_train") not in file:
            return Source("npz by domain 1", path, [path], partial(_join, path, _domains(file)))
        members = [check_images(file, file.name_of(f"x_{part}"), path) for part in file.parts]
    in_place = all(member.stored for member in members)
    return None if in_place else Source("npz 1", path, [path], partial(_repack, path))


def _repack(path: Path, writer: Writer) -> None:
    with Npz(path) as file:
        note_unused(file, path)
        for part in file.parts:
            key = file.name_of(f"x_{part}")
            writer.images(f"x_{part}", file.member(key).shape[1:], file.rows(key))
        for array in (*(f"y_{part}" for part in file.parts), *(key for key in OPTIONAL if key in file)):
            writer.array(array, file.array(file.name_of(array)))


def _domains(file: Npz) -> list[str]:
    """Return the domains of a file with arrays such as ``<domain>_x_train``, in the file's order."""
    found = sorted(name.removesuffix("_x_train") for name in file.names if name.endswith("_x_train"))
    domains = [str(name) for name in file.array("domains").ravel()] if "domains" in file else found
    if not found or not domains:
        raise Damaged(f"{file.path} has no x_train, only {', '.join(file.names) or 'nothing'}")
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
            labels = [
                one_per_image(f"{domain}_y_{part} in {path}", file.array(f"{domain}_y_{part}"), count)
                for domain, count in zip(domains, counts, strict=True)
            ]
            shape = file.member(images[0]).shape[1:]
            writer.images(f"x_{part}", shape, chain.from_iterable(file.rows(key) for key in images))
            writer.array(f"y_{part}", np.concatenate(labels))
            writer.array(f"domain_{part}", np.repeat(np.arange(len(domains)), counts))
        writer.texts("domains", domains)
        if "classes" in file:
            writer.array("classes", file.array("classes"))
