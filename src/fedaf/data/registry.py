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


def _instance_of(module: str, class_name: str, code: str) -> Callable[[str, Any], Any]:
    """Make a check of the type. It imports the type when called, because listing names must not import PyTorch."""

    def check(name: str, found: Any) -> Any:
        if not isinstance(found, getattr(import_module(module), class_name)):
            raise UserError(
                f"{name!r} is of type {type(found).__name__}; expected a {class_name} of {module}.", code=code
            )
        return found

    return check


DATASETS: "Registry[DatasetSpec]" = Registry(
    "data set",
    "fedaf.datasets",
    {
        "digits": "fedaf.data.sets.digits:SPEC",
        "mnist": "fedaf.data.sets.mnist:SPEC",
        "fashionmnist": "fedaf.data.sets.fashionmnist:SPEC",
        "cifar10": "fedaf.data.sets.cifar10:SPEC",
        "cifar100": "fedaf.data.sets.cifar100:SPEC",
        "pacs": "fedaf.data.sets.pacs:SPEC",
        "domainnet": "fedaf.data.sets.domainnet:SPEC",
    },
    "npz:FILE, folder:DIR or module:SPEC",
    _instance_of("fedaf.data.spec", "DatasetSpec", "FEDAF-DATA-SPEC"),
)

PARTITIONS: "Registry[PartitionKind]" = Registry(
    "partition",
    "fedaf.partitions",
    {
        "dirichlet": "fedaf.data.partitions.dirichlet:DIRICHLET",
        "domain": "fedaf.data.partitions.domain:DOMAIN",
        "iid": "fedaf.data.partitions.iid:IID",
        "shards": "fedaf.data.partitions.shards:SHARDS",
        "file": "fedaf.data.partitions.file:FILE",
    },
    "module:PARTITION",
    _instance_of("fedaf.data.partition", "PartitionKind", "FEDAF-PARTITION-TYPE"),
)

AUGMENTATIONS: "Registry[Augmentation]" = Registry(
    "augmentation",
    "fedaf.augmentations",
    {
        name: f"fedaf.data.augmentation:{name.upper()}"
        for name in ("flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation", "cutout")
    },
    "module:AUGMENTATION",
    _instance_of("fedaf.data.augmentation", "Augmentation", "FEDAF-AUGMENTATION-TYPE"),
)
