"""Split by domain: one client per domain."""

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind
from fedaf.protocol import Key, UserError

_wrong_domains = partial(UserError, code="FEDAF-PARTITION-DOMAINS")


def by_domain(domains: np.ndarray, names: Sequence[str]) -> Partition:
    """Return one client for each domain that has samples, with the name of the domain."""
    ids = [client_of_domain(name) for name in names]
    if len(set(ids)) < len(ids):
        raise _wrong_domains(f"domains {', '.join(names)} do not differ in 64 letters and digits; rename them.")
    rows = {name: np.flatnonzero(domains == number) for number, name in enumerate(ids)}
    return Partition({name: of_domain for name, of_domain in rows.items() if len(of_domain)})


def client_of_domain(name: str) -> str:
    """Return the id of the client that has a domain."""
    return re.sub(r"[^\w.-]", "-", name)[:64] or "-"


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    if data.train.domains is None:
        raise _wrong_domains(f"partition.kind is 'domain', but {data.name} has no domains; use another kind.")
    return by_domain(data.train.domains.numpy(), data.domains)


DOMAIN = PartitionKind((), _split)
