"""The data sets, partitions and augmentations by name."""

from typing import TYPE_CHECKING

from fedaf.common.registry import Registry, instance_of

if TYPE_CHECKING:
    from fedaf.data.augmentation import Augmentation
    from fedaf.data.partition import PartitionKind
    from fedaf.data.spec import DatasetSpec

_DATASETS = ("digits", "mnist", "fashionmnist", "cifar10", "cifar100", "pacs", "domainnet")
_PARTITIONS = ("dirichlet", "domain", "iid", "shards", "file")
_AUGMENTATIONS = ("flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation", "cutout")


DATASETS: "Registry[DatasetSpec]" = Registry(
    "data set",
    "fedaf.datasets",
    {name: f"fedaf.data.sets.{name}:SPEC" for name in _DATASETS},
    "npz:FILE, folder:DIR or module:SPEC",
    instance_of("fedaf.data.spec:DatasetSpec", "FEDAF-DATA-SPEC"),
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
