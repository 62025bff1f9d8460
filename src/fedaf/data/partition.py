"""Partitions: which client has which training samples."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.data.statistics import fingerprint
from fedaf.protocol import Key, Shard, UserError

_invalid = partial(UserError, code="FEDAF-PARTITION-FILE")


@dataclass(frozen=True)
class Partition:
    """Row numbers of the training split by client id; every sample belongs to exactly one client.

    ``redraws`` counts the draws that were rejected because a client had too few samples.
    """

    rows: dict[str, np.ndarray]
    redraws: int = 0

    def shards(self, data: DataSet) -> "Shards":
        """Return each client's data."""
        return Shards(self, data)

    def pooled(self) -> "Partition":
        """Return the partition that gives all samples to one client."""
        return numbered([np.concatenate(list(self.rows.values()))])

    def counts(self, labels: np.ndarray, num_classes: int) -> dict[str, list[int]]:
        """Return the samples of each class by client."""
        return {name: np.bincount(labels[rows], minlength=num_classes).tolist() for name, rows in self.rows.items()}

    def to_json(self, data: DataSet) -> str:
        """Return the partition as JSON, with class counts for people to read and a digest of the data."""
        rows = {name: r.tolist() for name, r in self.rows.items()}
        counts = self.counts(data.train.labels.numpy(), data.num_classes)
        facts = {"redraws": self.redraws, "data": fingerprint(data), "counts": counts, "rows": rows}
        return json.dumps(facts, ensure_ascii=False)

    @classmethod
    def reread(cls, path: Path, data: DataSet) -> "Partition":
        """Load the partition of a run that is resumed.

        Raises:
            UserError: If the data have changed since the run began, or the file is damaged.
        """
        try:
            digest = json.loads(path.read_text()).get("data", "")
        except (OSError, ValueError, AttributeError):
            digest = ""  # `read` below reports what is wrong
        if digest and digest != fingerprint(data):
            what = f"the data set {data.name!r} has changed since the run in {path.parent} began"
            raise UserError(f"{what}; restore the data, or start a new run.", code="FEDAF-DATA-CHANGED")
        return cls.read(path, len(data.train))

    @classmethod
    def read(cls, path: Path, samples: int) -> "Partition":
        """Load a saved partition of ``samples`` samples.

        Raises:
            UserError: If the file is damaged or does not assign each sample to exactly one client.
        """
        try:
            raw = json.loads(path.read_text())
            rows = {name: np.array(list(map(index, given)), np.int64) for name, given in raw["rows"].items()}
            redraws = int(raw["redraws"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise _invalid(f"{path} is not a partition.json of fedaf ({type(error).__name__}: {error}).") from error
        for name in rows:
            if not re.fullmatch(r"[\w.-]{1,64}", name):
                raise _invalid(f"{path} has a client {name!r:.80}; expected 1 to 64 letters, digits, '.', '_' or '-'.")
        everyone = np.sort(np.concatenate([*rows.values(), np.empty(0, np.int64)]))
        if not np.array_equal(everyone, np.arange(samples)):
            what = f"{path} does not assign each of the {samples} training samples to exactly one client"
            raise UserError(f"{what}; use one of the same data set.", code="FEDAF-PARTITION-MISMATCH")
        return cls(rows, redraws)


@dataclass(frozen=True)
class PartitionKind:
    """A way to split a data set over clients.

    Args:
        uses: The keys of the ``[partition]`` table that have an effect.
        split: Splits the training data; the options are an object with the keys in ``uses`` as attributes.
    """

    uses: tuple[str, ...]
    split: Callable[[DataSet, Any, Key], Partition]


class Shards(Mapping[str, Shard]):
    """Each client's data, read from the data set on access and not kept: all of it may be larger than memory."""

    def __init__(self, partition: Partition, data: DataSet) -> None:
        self._rows, self._data = partition.rows, data

    def __getitem__(self, client: str) -> Shard:
        rows, train, classes = torch.from_numpy(self._rows[client]), self._data.train, self._data.num_classes
        return Shard(train.images[rows].contiguous(), train.labels[rows], classes, self._test(train, rows))

    def _test(self, train: Split, rows: Tensor) -> Shard:
        """Return the test data of the client's domains, or all test data if there are no domains."""
        test = self._data.test
        if test.domains is None or train.domains is None:
            return Shard(test.images, test.labels, self._data.num_classes)
        same_domain = torch.isin(test.domains, train.domains[rows]).nonzero().squeeze(1)
        return Shard(test.images[same_domain], test.labels[same_domain], self._data.num_classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def client_ids(clients: int) -> list[str]:
    """Return ids that sort in numerical order."""
    width = len(str(clients - 1))
    return [f"client-{k:0{width}d}" for k in range(clients)]


def numbered(rows_by_client: Sequence[np.ndarray], redraws: int = 0) -> Partition:
    """Return the partition with clients named ``client-0``, ``client-1`` and so on."""
    ids = client_ids(len(rows_by_client))
    return Partition({name: np.sort(rows) for name, rows in zip(ids, rows_by_client, strict=True)}, redraws)


def check_enough_samples(labels: np.ndarray, clients: int, each: int = 1, option: str = "") -> None:
    """Raise ``UserError`` if there are not ``each`` samples for every client; ``option`` is the key that sets it."""
    if clients * each > len(labels):
        need = f"{clients} clients with at least {each} samples each need {clients * each} samples"
        remedy = f"use at most {len(labels) // each} clients (--clients, partition.clients)"
        lower = f" or lower {option}" if option else ""
        raise UserError(
            f"{need}, but there are {len(labels)} samples; {remedy}{lower}.", code="FEDAF-PARTITION-TOO-FEW"
        )
