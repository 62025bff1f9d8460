"""The data sets, partitions and augmentations by name."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedaf.common.registry import Registry
from fedaf.errors import UserError

if TYPE_CHECKING:
    from fedaf.data.augmentation import Augmentation
    from fedaf.data.partition import PartitionKind
    from fedaf.data.spec import DatasetSpec

_DATASETS = ("digits", "mnist", "fashionmnist", "cifar10", "cifar100", "pacs", "domainnet")
_PARTITIONS = ("dirichlet", "domain", "iid", "shards", "file")
_AUGMENTATIONS = ("flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation", "cutout")


def _instance_of(module: str, class_name: str, code: str) -> Callable[[str, Any], Any]:
    """Make a check of the type. It imports the type when called, because listing names must not import PyTorch."""

    def check(name: str, found: Any) -> Any:
        if not isinstance(found, getattr(import_module(module), class_name)):
            raise UserError(f"{name!r} is a {type(found).__name__}; expected a {module}.{class_name}.", code=code)
        return found

    return check


DATASETS: "Registry[DatasetSpec]" = Registry(
    "data set",
    "fedaf.datasets",
    {name: f"fedaf.data.sets.{name}:SPEC" for name in _DATASETS},
    "npz:FILE, folder:DIR or module:SPEC",
    _instance_of("fedaf.data.spec", "DatasetSpec", "FEDAF-DATA-SPEC"),
)

PARTITIONS: "Registry[PartitionKind]" = Registry(
    "partition",
    "fedaf.partitions",
    {name: f"fedaf.data.partitions.{name}:{name.upper()}" for name in _PARTITIONS},
    "module:PARTITION",
    _instance_of("fedaf.data.partition", "PartitionKind", "FEDAF-PARTITION-TYPE"),
)

AUGMENTATIONS: "Registry[Augmentation]" = Registry(
    "augmentation",
    "fedaf.augmentations",
    {name: f"fedaf.data.augmentation:{name.upper()}" for name in _AUGMENTATIONS},
    "module:AUGMENTATION",
    _instance_of("fedaf.data.augmentation", "Augmentation", "FEDAF-AUGMENTATION-TYPE"),
)
