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
_CHUNK = 1024  # images that noise is added to at a time
_KEPT = 1 << 30  # bytes of images with noise that are kept in memory


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on the training images of clients, for pixels in [0, 1]; test images have none.

    Args:
        levels: The standard deviation by client id.
        seed: The value of the key that the noise of all clients is drawn from.
    """

    levels: Mapping[str, float]
    seed: int

    def added(self, client: str, images: Tensor) -> Tensor:
        """Return a client's images uint8 [N, C, H, W] with noise, rounded and clamped. They are the same each time."""
        level, generator = self.levels[client], Key(self.seed).derive("noise", client).torch()
        noisy = torch.empty_like(images)
        for first in range(0, len(images), _CHUNK):
            some = images[first : first + _CHUNK].float()
            some += torch.randn(some.shape, generator=generator) * (255 * level)
            noisy[first : first + _CHUNK] = some.round_().clamp_(0, 255).to(torch.uint8)
        return noisy


@dataclass(frozen=True)
class Partition:
    """Row numbers of the training split by client id; every sample belongs to exactly one client.

    ``redraws`` counts the draws that were rejected because a client had too few samples. ``noise`` is what each
    client's images are changed by.
    """

    rows: dict[str, np.ndarray]
    redraws: int = 0
    noise: Noise | None = None

    def shards(self, data: DataSet) -> "Shards":
        """Return each client's data."""
        return Shards(self, data)

    def counts(self, labels: np.ndarray, num_classes: int) -> dict[str, list[int]]:
        """Return the samples of each class by client."""
        return {name: np.bincount(labels[rows], minlength=num_classes).tolist() for name, rows in self.rows.items()}

    def to_json(self, data: DataSet) -> str:
        """Return the partition as JSON, with class counts for people to read and a digest of the data."""
        rows = {name: r.tolist() for name, r in self.rows.items()}
        counts = self.counts(data.train.labels.numpy(), data.num_classes)
        noise = {} if self.noise is None else {"noise": {"levels": self.noise.levels, "seed": self.noise.seed}}
        facts = {"redraws": self.redraws, **noise, "data": fingerprint(data), "counts": counts, "rows": rows}
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
            noise = _read_noise(raw["noise"], rows) if "noise" in raw else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise _invalid(f"{path} is not a partition.json of fedaf ({type(error).__name__}: {error}).") from error
        for name in rows:
            if not re.fullmatch(r"[\w.-]{1,64}", name):
                raise _invalid(f"{path} has a client {name!r:.80}; expected 1 to 64 letters, digits, '.', '_' or '-'.")
        everyone = np.sort(np.concatenate([*rows.values(), np.empty(0, np.int64)]))
        if not np.array_equal(everyone, np.arange(samples)):
            what = f"{path} does not assign each of the {samples} training samples to exactly one client"
            raise UserError(f"{what}; use one of the same data set.", code="FEDAF-PARTITION-MISMATCH")
        return cls(rows, redraws, noise)


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
    """Each client's data, read from the data set on access and not kept: all of it may be larger than memory.

    Images with noise are kept up to a limit, because drawing the noise takes many times longer than reading.
    """

    def __init__(self, partition: Partition, data: DataSet) -> None:
        self._rows, self._noise, self._data = partition.rows, partition.noise, data
        self._noisy: dict[str, Tensor] = {}

    def __getitem__(self, client: str) -> Shard:
        rows, train, classes = torch.from_numpy(self._rows[client]), self._data.train, self._data.num_classes
        return Shard(self._images(client, rows), train.labels[rows], classes, self._test(train, rows))

    def _images(self, client: str, rows: Tensor) -> Tensor:
        if client in self._noisy:
            return self._noisy[client]
        images = self._data.train.images[rows].contiguous()
        if self._noise is None or self._noise.levels[client] == 0:
            return images
        noisy = self._noise.added(client, images)
        if sum(kept.nbytes for kept in self._noisy.values()) + noisy.nbytes <= _KEPT:
            self._noisy[client] = noisy
        return noisy

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


def _read_noise(raw: Any, clients: Mapping[str, Any]) -> Noise:
    levels = {client: float(raw["levels"][client]) for client in clients}
    if not all(0 <= level <= 1e6 for level in levels.values()):
        raise ValueError("the noise levels must be at least 0")
    return Noise(levels, Key(index(raw["seed"])).value)


def client_ids(clients: int) -> list[str]:
    """Return ids that sort in numerical order."""
    width = len(str(clients - 1))
    return [f"client-{k:0{width}d}" for k in range(clients)]


def numbered(rows_by_client: Sequence[np.ndarray], redraws: int = 0) -> Partition:
    """Return the partition with clients named ``client-0``, ``client-1`` and so on."""
    ids = client_ids(len(rows_by_client))
    return Partition({name: np.sort(rows) for name, rows in zip(ids, rows_by_client, strict=True)}, redraws)


def by_name(numbers: np.ndarray, names: Sequence[str], what: str, code: str) -> Partition:
    """Return one client for each name that has samples, with that name as far as a client id allows.

    Args:
        numbers: The number of each sample's name.
        names: The names of domains or natural clients.
        what: What they name, for messages: ``"domains"``.
        code: The code of the error.

    Raises:
        UserError: If two names become the same client id.
    """
    ids = [client_id(name) for name in names]
    if len(set(ids)) < len(ids):
        twice = next(name for number, name in enumerate(names) if ids[number] in ids[:number])
        same = ", ".join(name for name in names if client_id(name) == client_id(twice))
        raise UserError(f"the {what} {same} do not differ in 64 letters and digits; rename them.", code=code)
    order = np.argsort(numbers, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(numbers, minlength=len(ids)))[:-1])
    return Partition({name: found for name, found in zip(ids, rows, strict=True) if len(found)})


def client_id(name: str) -> str:
    """Return the id of the client of a domain, or of a natural client."""
    return re.sub(r"[^\w.-]", "-", name)[:64] or "-"


def check_enough_samples(labels: np.ndarray, clients: int, each: int = 1, option: str = "") -> None:
    """Raise ``UserError`` if there are not ``each`` samples for every client; ``option`` is the key that sets it."""
    if clients * each > len(labels):
        need = f"{clients} clients with at least {each} samples each need {clients * each} samples"
        remedy = f"use at most {len(labels) // each} clients (--clients, partition.clients)"
        lower = f" or lower {option}" if option else ""
        raise UserError(
            f"{need}, but there are {len(labels)} samples; {remedy}{lower}.", code="FEDAF-PARTITION-TOO-FEW"
        )
