"""Splits of a data set over clients: which client holds which samples."""

import json
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedaf.data.dataset import DataSet, Split
from fedaf.data.statistics import fingerprint
from fedaf.protocol import Key, Shard, UserError


@dataclass(frozen=True)
class Partition:
    """Row numbers of the training split by client id; every sample stands in exactly one of them. ``redraws`` says
    how many draws were thrown away because a client got too little."""

    rows: dict[str, np.ndarray]
    redraws: int = 0

    def shards(self, data: DataSet) -> "Shards":
        return Shards(self, data)

    def counts(self, labels: np.ndarray, num_classes: int) -> dict[str, list[int]]:
        """Samples of each class by client."""
        return {name: np.bincount(labels[rows], minlength=num_classes).tolist() for name, rows in self.rows.items()}

    def to_json(self, data: DataSet) -> str:
        """With the counts by class for people, and a digest of the data it is a split of."""
        rows = {name: r.tolist() for name, r in self.rows.items()}
        counts = self.counts(data.train.labels.numpy(), data.num_classes)
        facts = {"redraws": self.redraws, "data": fingerprint(data), "counts": counts, "rows": rows}
        return json.dumps(facts, ensure_ascii=False)

    @classmethod
    def reread(cls, path: Path, data: DataSet) -> "Partition":
        """The split of a run that goes on; refused where its data are no longer what they were."""
        try:
            known = json.loads(path.read_text()).get("data", "")
        except (OSError, ValueError, AttributeError):
            known = ""  # the reading below says what is wrong with it
        if known and known != fingerprint(data):
            raise UserError(
                f"the data set {data.name!r} has changed since the run in {path.parent} began; bring back the data it "
                "began with, or start a new run."
            )
        return cls.read(path, len(data.train))

    @classmethod
    def read(cls, path: Path, samples: int) -> "Partition":
        """Re-load a saved split, and check that it is one of ``samples`` samples."""
        try:
            raw = json.loads(path.read_text())
            whole = {str(name): [operator.index(row) for row in rows] for name, rows in raw["rows"].items()}
            rows = {name: np.asarray(r, dtype=np.int64) for name, r in whole.items()}
            redraws = int(raw["redraws"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise UserError(f"{path} is not a partition that fedaf wrote ({type(error).__name__}: {error}).") from error
        for name in rows:
            if not re.fullmatch(r"[\w.-]{1,64}", name):
                raise UserError(f"{path} names a client {name!r:.80}; allowed are letters, digits, '.', '_' and '-'.")
        everyone = np.sort(np.concatenate([*rows.values(), np.empty(0, np.int64)]))
        if not np.array_equal(everyone, np.arange(samples)):
            raise UserError(f"{path} does not hold each of the {samples} training samples exactly once.")
        return cls(rows, redraws)


class Shards(Mapping[str, Shard]):
    """Each client's data, taken out of the data set when asked for and not kept: it may be larger than memory."""

    def __init__(self, partition: Partition, data: DataSet) -> None:
        self._rows, self._data = partition.rows, data

    def __getitem__(self, client: str) -> Shard:
        rows, train, classes = torch.from_numpy(self._rows[client]), self._data.train, self._data.num_classes
        return Shard(train.images[rows].contiguous(), train.labels[rows], classes, self._test(train, rows))

    def _test(self, train: Split, rows: Tensor) -> Shard:
        """The test data of the domains the client holds; without domains, all of them."""
        test = self._data.test
        if test.domains is None or train.domains is None:
            return Shard(test.images, test.labels, self._data.num_classes)
        mine = torch.isin(test.domains, train.domains[rows]).nonzero().squeeze(1)
        return Shard(test.images[mine], test.labels[mine], self._data.num_classes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def client_ids(clients: int) -> list[str]:
    width = len(str(clients - 1))
    return [f"client-{k:0{width}d}" for k in range(clients)]


def iid(labels: np.ndarray, clients: int, key: Key) -> Partition:
    """Equal shares of a random order."""
    _enough_samples(labels, clients)
    return _partition(np.array_split(key.numpy().permutation(len(labels)), clients))


def by_domain(domains: np.ndarray, names: Sequence[str]) -> Partition:
    """One client for each domain that has samples, called like it."""
    ids = [client_of_domain(name) for name in names]
    if len(set(ids)) < len(ids):
        raise UserError(f"domains {', '.join(names)} do not differ in their first 64 letters and digits; rename them.")
    rows = {name: np.flatnonzero(domains == number) for number, name in enumerate(ids)}
    return Partition({name: of_domain for name, of_domain in rows.items() if len(of_domain)})


def client_of_domain(name: str) -> str:
    """What the client that holds a domain is called."""
    return re.sub(r"[^\w.-]", "-", name)[:64] or "-"


def shards_per_client(labels: np.ndarray, clients: int, shards: int, key: Key) -> Partition:
    """Sort by label, cut into ``clients * shards`` pieces, deal ``shards`` random pieces to each client."""
    _enough_samples(labels, clients)
    pieces = clients * shards
    if pieces > len(labels):
        raise UserError(
            f"{clients} clients with {shards} shards each need {pieces} samples, but there are {len(labels)}; "
            "lower partition.clients or partition.shards_per_client."
        )
    rng = key.numpy()
    shuffled = rng.permutation(len(labels))
    cut = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], pieces)
    dealt = rng.permutation(pieces).reshape(clients, shards)
    return _partition([np.concatenate([cut[i] for i in hand]) for hand in dealt])


def dirichlet(
    labels: np.ndarray, clients: int, *, alpha: float, key: Key, min_size: int = 10, max_redraws: int = 1000
) -> Partition:
    """The balanced Dirichlet split: each class is dealt by Dirichlet(alpha) over the clients that hold less than an
    equal share so far; drawn again until every client has ``min_size`` samples."""
    _enough_samples(labels, clients)
    if clients * min_size > len(labels):
        raise UserError(
            f"{clients} clients with at least {min_size} samples each need {clients * min_size}, but there are "
            f"{len(labels)}; lower partition.clients or partition.min_size."
        )
    rng = key.numpy()
    for redraws in range(max_redraws + 1):
        hands = _dirichlet_draw(labels, clients, alpha, rng)
        if min(len(hand) for hand in hands) >= min_size:
            return _partition(hands, redraws)
    raise UserError(
        f"no split of {len(labels)} samples over {clients} clients with alpha {alpha:g} gave each at least {min_size} "
        f"in {max_redraws} redraws; raise partition.alpha, or lower partition.clients or partition.min_size."
    )


def _dirichlet_draw(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> list[np.ndarray]:
    share = len(labels) / clients
    hands: list[list[np.ndarray]] = [[] for _ in range(clients)]
    held = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        is_open = held < share
        weights = rng.dirichlet(np.full(clients, alpha)) * is_open
        if weights.sum() <= 0:  # all of the class was dealt to clients that are full: any open one may take it
            weights = np.zeros(clients)
            weights[rng.choice(np.flatnonzero(is_open))] = 1.0
        cuts = np.floor(np.cumsum(weights / weights.sum())[:-1] * len(rows) + 1e-9).astype(np.int64)
        for client, part in enumerate(np.split(rows, cuts)):
            hands[client].append(part)
            held[client] += len(part)
    return [np.concatenate(hand) for hand in hands]


def _partition(hands: list[np.ndarray], redraws: int = 0) -> Partition:
    ids = client_ids(len(hands))
    return Partition({name: np.sort(hand) for name, hand in zip(ids, hands, strict=True)}, redraws)


def _enough_samples(labels: np.ndarray, clients: int) -> None:
    if clients > len(labels):
        raise UserError(f"{clients} clients cannot share {len(labels)} samples; use at most {len(labels)} (--clients).")
