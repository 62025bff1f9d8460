"""The data sets, partitions and augmentations by name."""

from typing import Any

from fedaf.common.registry import Registry


def _any(name: str, found: Any) -> Any:
    return found


DATASETS: Registry[Any] = Registry(
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
    _any,
)

PARTITIONS: Registry[Any] = Registry(
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
    _any,
)

AUGMENTATIONS: Registry[Any] = Registry(
    "augmentation",
    "fedaf.augmentations",
    {
        name: f"fedaf.data.augmentation:{name.upper()}"
        for name in ("flip", "shift", "scale", "rotate", "brightness", "contrast", "saturation", "cutout")
    },
    "module:AUGMENTATION",
    _any,
)
