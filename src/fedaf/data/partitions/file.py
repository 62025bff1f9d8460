"""The partition of an earlier run, read from its partition.json."""

from pathlib import Path
from typing import Any

from fedaf.data.dataset import DataSet
from fedaf.data.partition import Partition, PartitionKind
from fedaf.protocol import Key, UserError


def _split(data: DataSet, options: Any, key: Key) -> Partition:
    if options.path is None:
        what = "partition.kind = 'file' needs partition.path, the partition.json of an earlier run; set it."
        raise UserError(what, code="FEDAF-PARTITION-PATH")
    return Partition.read(Path(options.path), len(data.train))


FILE = PartitionKind(("path",), _split)
