"""The partitions natural, classes, sizes and noise."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedaf.data import partition as partition_module
from fedaf.data.dataset import DataSet, Split, with_validation
from fedaf.data.partition import Partition
from fedaf.data.partitions.classes import classes_per_client
from fedaf.data.partitions.sizes import log_normal_sizes
from fedaf.data.registry import PARTITIONS
from fedaf.protocol import Key
from support.datafiles import pixels
from support.errors import raises

LABELS = np.arange(1000) % 10


def dataset(count: int = 40, clients=None, names=()) -> DataSet:
    images = torch.from_numpy(pixels(count, 3, 8, 8))
    split = Split(images, torch.arange(count) % 2, clients=clients)
    return DataSet("own", split, Split(images[:10], torch.arange(10) % 2), 2, (0.5,) * 3, (0.25,) * 3, clients=names)


def everyone(partition: Partition) -> list[int]:
    return sorted(np.concatenate(list(partition.rows.values())).tolist())


def test_natural_clients_have_their_own_rows_and_names():
    numbers = torch.tensor([2, 0, 2, 0] * 10)
    split = PARTITIONS.find("natural").split(dataset(40, numbers, ("St. Mary", "empty", "b")), None, Key(0))
    assert list(split.rows) == ["St.-Mary", "b"]
    assert split.rows["b"].tolist() == list(range(0, 40, 2))
    assert everyone(split) == list(range(40))


def test_natural_needs_clients_with_different_names():
    with raises("FEDAF-PARTITION-NATURAL") as error:
        PARTITIONS.find("natural").split(dataset(), None, Key(0))
    assert "data.client_column" in str(error.value)
    with raises("FEDAF-PARTITION-NATURAL") as error:
        PARTITIONS.find("natural").split(dataset(40, torch.arange(40) % 2, ("a b", "a/b")), None, Key(0))
    assert "a b, a/b" in str(error.value)


def test_a_hold_out_set_keeps_the_clients_of_the_rest():
    numbers = torch.arange(40) % 2
    rest = with_validation(dataset(40, numbers, ("a", "b")), 10).train
    assert len(rest.clients) == 30
    assert torch.equal(rest.clients, rest.labels)  # both alternate


@pytest.mark.parametrize(("clients", "each"), [(10, 1), (10, 2), (7, 3), (20, 2), (3, 10), (5, 2)])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_client_has_so_many_classes_and_each_class_a_fair_share_of_clients(clients, each, seed):
    split = classes_per_client(LABELS, clients, each, Key(seed))
    counts = np.array(list(split.counts(LABELS, 10).values()))
    assert ((counts > 0).sum(1) == each).all()
    owners = (counts > 0).sum(0)
    assert owners.min() >= 1
    assert owners.max() - owners.min() <= 1
    for number, column in enumerate(counts.T):
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1, number
    assert everyone(split) == list(range(1000))


def test_the_classes_of_clients_depend_on_the_seed_alone():
    one, same, other = (classes_per_client(LABELS, 5, 3, Key(seed)).counts(LABELS, 10) for seed in (0, 0, 1))
    assert one == same != other


@pytest.mark.parametrize(
    ("clients", "each", "code", "words"),
    [
        (4, 11, "CLASSES", ["11", "10 classes"]),
        (4, 2, "CLASSES", ["4 clients with 2 classes", "10 classes"]),
        (1001, 10, "TOO-FEW", ["class 0 has 100", "1001 clients"]),
    ],
)
def test_classes_that_cannot_be_given_out_are_a_sentence(clients, each, code, words):
    with raises(f"FEDAF-PARTITION-{code}") as error:
        classes_per_client(LABELS, clients, each, Key(0))
    assert all(word in str(error.value) for word in words)


def test_sizes_are_log_normal():
    split = log_normal_sizes(np.zeros(10**6), 2000, sigma=0.7, min_size=1, key=Key(3))
    logs = np.log([len(rows) - 1 for rows in split.rows.values()])
    assert logs.std() == pytest.approx(0.7, abs=0.05)
    assert everyone(split) == list(range(10**6))


def test_sigma_zero_is_equal_sizes_and_min_size_holds():
    even = log_normal_sizes(LABELS, 8, sigma=0, min_size=10, key=Key(0))
    assert {len(rows) for rows in even.rows.values()} == {125}
    uneven = log_normal_sizes(LABELS, 8, sigma=10, min_size=10, key=Key(0))
    assert min(len(rows) for rows in uneven.rows.values()) == 10
    with raises("FEDAF-PARTITION-TOO-FEW"):
        log_normal_sizes(LABELS, 101, sigma=1, min_size=10, key=Key(0))


def test_clients_of_different_sizes_have_the_same_label_distribution():
    labels = np.repeat([0, 1], [30_000, 10_000])
    split = log_normal_sizes(labels, 5, sigma=1, min_size=1000, key=Key(0))
    for counts in split.counts(labels, 2).values():
        assert counts[0] / sum(counts) == pytest.approx(0.75, abs=0.05)


def noisy(level: float, clients: int = 5, count: int = 500, seed: int = 0) -> tuple[Partition, DataSet]:
    images = torch.full((count, 1, 16, 16), 128, dtype=torch.uint8)
    split = Split(images, torch.arange(count) % 2)
    data = DataSet("grey", split, split, 2, (0.5,), (0.25,))
    options = SimpleNamespace(clients=clients, noise_level=level)
    return PARTITIONS.find("noise").split(data, options, Key(seed)), data


def test_noise_grows_from_client_to_client():
    """The standard deviation of client k of K is k / (K - 1) of the level, in units of 255."""
    partition, data = noisy(0.1)
    shards = partition.shards(data)
    for number, shard in enumerate(shards.values()):
        pixels = shard.images.float()
        expected = 255 * 0.1 * number / 4
        assert pixels.std() == pytest.approx((expected**2 + (1 / 12 if number else 0)) ** 0.5, rel=0.02, abs=1e-6)
        assert pixels.mean() == pytest.approx(128, abs=0.3)
        assert shard.test.images.float().std() == 0


def test_noise_is_the_same_each_time_and_after_a_resume(tmp_path):
    partition, data = noisy(0.2)
    first, again = (partition.shards(data)["client-4"].images for _ in range(2))
    assert torch.equal(first, again)
    (tmp_path / "partition.json").write_text(partition.to_json(data))
    saved = Partition.reread(tmp_path / "partition.json", data)
    assert torch.equal(saved.shards(data)["client-4"].images, first)
    other, _ = noisy(0.2, seed=1)
    assert not torch.equal(other.shards(data)["client-4"].images, first)
    assert not torch.equal(partition.shards(data)["client-3"].images, first)


def test_noise_is_drawn_once_for_a_client_as_far_as_memory_allows(monkeypatch):
    partition, data = noisy(0.2)
    monkeypatch.setattr(partition_module, "_KEPT", 2 * 100 * 16 * 16)  # the images of two clients
    shards = partition.shards(data)
    first, again = ({client: shard.images for client, shard in shards.items()} for _ in range(2))
    assert [first[client] is again[client] for client in shards] == [False, True, True, False, False]  # 0 has no noise
    assert all(torch.equal(first[client], again[client]) for client in shards)


def test_large_noise_is_clamped_and_one_client_has_none():
    partition, data = noisy(10.0)
    extremes = torch.bincount(partition.shards(data)["client-4"].images.flatten().long(), minlength=256)
    assert (extremes[0] + extremes[255]) / extremes.sum() > 0.9
    alone, data = noisy(0.5, clients=1)
    assert alone.shards(data)["client-0"].images.float().std() == 0


@pytest.mark.parametrize("noise", [{"levels": {}, "seed": 0}, {"levels": {"client-0": -1.0}, "seed": 0}, 3, {}])
def test_a_partition_file_with_damaged_noise_is_a_sentence(tmp_path, noise):
    partition, data = noisy(0.1, clients=1)
    saved = json.loads(partition.to_json(data)) | {"noise": noise}
    (tmp_path / "partition.json").write_text(json.dumps(saved))
    with raises("FEDAF-PARTITION-FILE"):
        Partition.reread(tmp_path / "partition.json", data)
