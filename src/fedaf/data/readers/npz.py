"""Data sets in .npz files. Uncompressed files are opened in place; compressed files and files with separate arrays for
each domain are converted."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from fedaf.data.storage.cache import Source
from fedaf.data.storage.form import Damaged, Npz, Writer
from fedaf.data.storage.stored import check_images
from fedaf.protocol import UserError

_PARTS = ("train", "test")


def source(path: Path) -> Source | None:
    """Return how to convert a file, or ``None`` if it can be opened in place."""
    with report_damage(path), Npz(path) as file:
        if "x_train" in file:
            members = [file.member(f"x_{part}") for part in _PARTS]
            for part, member in zip(_PARTS, members, strict=True):
                check_images(path, f"x_{part}", member.dtype, member.shape)
            if all(member.stored for member in members):
                return None
            return Source("npz 1", path, [path], partial(_repack, path))
        domains = _domains(file, path)
    return Source("npz by domain 1", path, [path], partial(_join, path, domains))


@contextmanager
def report_damage(path: Path) -> Iterator[None]:
    """Turn ``Damaged`` into an error about the user's file."""
    try:
        yield
    except Damaged as error:
        raise UserError(
            f"{path} is not a data set; expected an undamaged .npz file with x_train, y_train, x_test and y_test.",
            code="FEDAF-DATA-DAMAGED",
        ) from error


def _repack(path: Path, writer: Writer) -> None:
    with report_damage(path), Npz(path) as file:
        for part in _PARTS:
            writer.images(f"x_{part}", file.member(f"x_{part}").shape[1:], file.rows(f"x_{part}"))
        for key in ("y_train", "y_test", "domain_train", "domain_test", "classes", "domains"):
            if key in file or key.startswith("y_"):
                writer.array(key, file.array(key))


def _domains(file: Npz, path: Path) -> list[str]:
    """Return the domains of a file with arrays such as ``<domain>_x_train``, in the file's order."""
    found = [name.removesuffix("_x_train") for name in file.names if name.endswith("_x_train")]
    if not found:
        raise Damaged("no x_train")
    domains = [str(name) for name in file.array("domains").ravel()] if "domains" in file else sorted(found)
    shape = None
    for domain in domains:
        for key in (f"{domain}_{kind}_{part}" for part in _PARTS for kind in "xy"):
            if key not in file:
                raise UserError(f"{path} has no {key}; every domain needs one.", code="FEDAF-DATA-INCOMPLETE")
            member = file.member(key)
            if key.startswith(f"{domain}_x_"):
                check_images(path, key, member.dtype, member.shape)
                shape = shape or member.shape[1:]
                if member.shape[1:] != shape:
                    raise UserError(
                        f"{key} in {path} holds images of shape {member.shape[1:]}, but others have {shape}.",
                        code="FEDAF-DATA-SHAPE",
                    )
    return domains


def _join(path: Path, domains: list[str], writer: Writer) -> None:
    """Write the domains one after the other, with the domain number of each image."""
    with report_damage(path), Npz(path) as file:
        shape = file.member(f"{domains[0]}_x_train").shape[1:]
        for part in _PARTS:
            writer.images(f"x_{part}", shape, _all_domains(file, domains, part))
            labels = [file.array(f"{domain}_y_{part}") for domain in domains]
            counts = [file.member(f"{domain}_x_{part}").shape[0] for domain in domains]
            for domain, given, count in zip(domains, labels, counts, strict=True):
                if given.shape != (count,) or given.dtype.kind not in "iu":
                    raise UserError(
                        f"{domain}_y_{part} in {path} must hold one label >= 0 for each of the {count} images.",
                        code="FEDAF-DATA-LABELS",
                    )
            writer.array(f"y_{part}", np.concatenate([given.astype(np.int64) for given in labels]))
            writer.array(f"domain_{part}", np.repeat(np.arange(len(domains)), counts))
        writer.texts("domains", domains)
        if "classes" in file:
            writer.array("classes", file.array("classes"))


def _all_domains(file: Npz, domains: list[str], part: str) -> Iterator[np.ndarray]:
    for domain in domains:
        yield from file.rows(f"{domain}_x_{part}")
