"""The data sets, partitions and augmentations by name."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedaf.common.registry import Registry, instance_of
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.data.augmentation import Augmentation
    from fedaf.data.partition import PartitionKind
    from fedaf.data.spec import DatasetSpec

_DATASETS = ("digits", "mnist", "fashionmnist", "cifar10", "cifar100", "pacs", "domainnet")
_PARTITIONS = ("dirichlet", "natural", "domain", "classes", "shards", "sizes", "noise", "iid", "file")
_AUGMENTATIONS = ("flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation", "cutout")


def _spec_or_factory(name: str, found: Any) -> "DatasetSpec | Callable[..., Any]":
    """Check a custom data set: a specification, or, as ``module:factory``, a function that returns data."""
    from fedaf.data.spec import DatasetSpec

    if not isinstance(found, DatasetSpec) and not (callable(found) and ":" in name):
        what = f"{name!r} is a {type(found).__name__}"
        raise UserError(f"{what}; expected a DatasetSpec, or a function that returns data.", code="FEDAF-DATA-SPEC")
    entry: DatasetSpec | Callable[..., Any] = found
    return entry


def _path_hint(name: str) -> str:
    """Return what to write for a path without a prefix."""
    path = Path(name)
    if path.suffix.lower() in (".csv", ".tsv", ".xls", ".xlsx"):
        return " (tables are not supported; fedaf is for images: folder:DIR takes image files and a labels.csv)"
    try:
        if path.suffix.lower() == ".npz":
            prefix = "npz:"
        elif path.suffix.lower() == ".parquet" or any(path.glob("*.parquet")) or any(path.glob("*/*.parquet")):
            prefix = "parquet:"
        else:
            prefix = "folder:" if path.is_dir() or "/" in name else ""
    except (OSError, ValueError):
        prefix = ""
    return f" (for a path, write {prefix}{name})" if prefix else ""


DATASETS: "Registry[DatasetSpec | Callable[..., Any]]" = Registry(
    "data set",
    "fedaf.datasets",
    {name: f"fedaf.data.sets.{name}:SPEC" for name in _DATASETS},
    "npz:FILE, folder:DIR, parquet:DIR, module:SPEC or module:factory",
    _spec_or_factory,
    hint=_path_hint,
)

PARTITIONS: "Registry[PartitionKind]" = Registry(
    "partition",
    "fedaf.partitions",
    {name: f"fedaf.data.partitions.{name}:{name.upper()}" for name in _PARTITIONS},
    "module:PARTITION",
    instance_of("fedaf.data.partition:PartitionKind", "FEDAF-PARTITION-TYPE"),
)

AUGMENTATIONS: "Registry[Augmentation]" = Registry(
    "augmentation",
    "fedaf.augmentations",
    {name: f"fedaf.data.augmentation:{name.upper()}" for name in _AUGMENTATIONS},
    "module:AUGMENTATION",
    instance_of("fedaf.data.augmentation:Augmentation", "FEDAF-AUGMENTATION-TYPE"),
)


def spec_of(name: str) -> "DatasetSpec":
    """Return the specification of a named data set.

    Raises:
        UserError: If the name is unknown, or names a function.
    """
    from fedaf.data.spec import DatasetSpec

    found = DATASETS.find(name)
    if not isinstance(found, DatasetSpec):
        raise UserError(f"{name!r} is a function; expected a DatasetSpec.", code="FEDAF-DATA-SPEC")
    return found
