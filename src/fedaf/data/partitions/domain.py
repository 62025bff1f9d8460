"""Split by domain: one client per domain."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind, by_name
from fedaf.protocol import Key, UserError

_CODE = "FEDAF-PARTITION-DOMAINS"


def by_domain(domains: np.ndarray, names: Sequence[str]) -> Partition:
    """Return one client for each domain that has samples, with the name of the domain."""
    return by_name(domains, names, "domains", _CODE)


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    if data.train.domains is None:
        what = f"partition.kind is 'domain', but {data.name} has no domains; use another kind."
        raise UserError(what, code=_CODE)
    return by_domain(data.train.domains.numpy(), data.domains)


DOMAIN = PartitionKind((), _split)
