"""The natural split: each client has the images that come from it."""

from typing import Any

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind, by_name
from fedaf.protocol import Key, UserError

_CODE = "FEDAF-PARTITION-NATURAL"


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    if data.train.clients is None:
        what = f"partition.kind is 'natural', but {data.name} does not say which client an image comes from"
        remedy = "set data.client_column (parquet, labels.csv), add client_train (npz), or use another kind"
        raise UserError(f"{what}; {remedy}.", code=_CODE)
    return by_name(data.train.clients.numpy(), data.clients, "clients", _CODE)


NATURAL = PartitionKind((), _split)
