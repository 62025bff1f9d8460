"""Partitions: every sample belongs to exactly one client, the key decides, and a saved partition is read or refused."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from fedaf.data.dataset import DataSet, Split
from fedaf.data.partition import Partition, client_ids
from fedaf.data.partitions.dirichlet import dirichlet
from fedaf.data.partitions.domain import by_domain
from fedaf.data.partitions.iid import iid
from fedaf.data.partitions.shards import shards_per_client
from fedaf.protocol import Key, UserError
from support.errors import raises

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may be busy

labels_of_any_kind = st.lists(st.integers(0, 5), min_size=12, max_size=150).map(np.array)
seeds = st.integers(0, 2**32)


def balanced_labels(classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(classes), each)


def data_of(labels: np.ndarray) -> DataSet:
    """Black images with these labels, of six classes."""
    split = Split(torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8), torch.from_numpy(labels))
    return DataSet("black", split, split, 6, (0.5,), (0.25,))


def each_once(split: Partition, samples: int) -> bool:
    return sorted(row for rows in split.rows.values() for row in rows.tolist()) == list(range(samples))


def same(one: Partition, other: Partition) -> bool:
    return list(one.rows) == list(other.rows) and all(np.array_equal(one.rows[k], other.rows[k]) for k in one.rows)


def sizes(split: Partition) -> list[int]:
    return [len(rows) for rows in split.rows.values()]


def classes_by_client(split: Partition, labels: np.ndarray) -> list[int]:
    return [len(np.unique(labels[rows])) for rows in split.rows.values()]


def drawn(labels: np.ndarray, clients: int, alpha: float, seed: int) -> Partition:
    """A Dirichlet split, or no example where none gives every client a sample."""
    try:
        return dirichlet(labels, clients, alpha=alpha, key=Key(seed), min_size=1, max_redraws=20)
    except UserError:
        reject()


@unhurried
@given(labels=labels_of_any_kind, clients=st.integers(1, 6), alpha=st.floats(0.01, 100), seed=seeds)
def test_a_dirichlet_split_puts_every_sample_in_exactly_one_shard(labels, clients, alpha, seed):
    split = drawn(labels, clients, alpha, seed)
    assert each_once(split, len(labels))
    assert list(split.rows) == client_ids(clients)


@unhurried
@given(labels=labels_of_any_kind, clients=st.integers(1, 12), seed=seeds)
def test_an_iid_split_puts_every_sample_in_exactly_one_shard_of_equal_size(labels, clients, seed):
    split = iid(labels, clients, Key(seed))
    assert each_once(split, len(labels))
    assert max(sizes(split)) - min(sizes(split)) <= 1


@unhurried
@given(labels=labels_of_any_kind, clients=st.integers(1, 6), pieces=st.integers(1, 2), seed=seeds)
def test_a_split_by_shards_puts_every_sample_in_exactly_one_shard(labels, clients, pieces, seed):
    split = shards_per_client(labels, clients, pieces, Key(seed))
    assert each_once(split, len(labels))
    assert max(sizes(split)) - min(sizes(split)) <= pieces


@pytest.mark.parametrize(
    "split_by",
    [
        lambda labels, key: dirichlet(labels, 5, alpha=0.1, key=key),
        lambda labels, key: iid(labels, 5, key),
        lambda labels, key: shards_per_client(labels, 5, 2, key),
    ],
    ids=["dirichlet", "iid", "shards"],
)
def test_a_split_is_decided_by_its_key(split_by):
    labels = balanced_labels(10, 60)
    assert same(split_by(labels, Key(1)), split_by(labels, Key(1)))
    assert not same(split_by(labels, Key(1)), split_by(labels, Key(2)))


@unhurried
@given(labels=labels_of_any_kind, clients=st.integers(2, 6), alpha=st.floats(0.01, 10), seed=seeds)
def test_a_client_with_its_equal_share_gets_no_further_class(labels, clients, alpha, seed):
    split = drawn(labels, clients, alpha, seed)
    for counts in split.counts(labels, 6).values():
        held = 0
        for count in counts:
            assert count == 0 or held < len(labels) / clients
            held += count


def test_draws_are_thrown_away_until_every_client_has_min_size_samples():
    labels = balanced_labels(10, 100)
    redraws = []
    for seed in range(10):
        draw = partial(dirichlet, labels, 10, alpha=0.05, key=Key(seed), min_size=40)
        split = draw()
        assert min(sizes(split)) >= 40
        assert same(draw(max_redraws=split.redraws), split)
        if split.redraws:
            with raises("FEDAF-PARTITION-REDRAWS"):
                draw(max_redraws=split.redraws - 1)
        redraws.append(split.redraws)
    assert max(redraws) > 0


@pytest.mark.parametrize("seed", range(20))
def test_a_class_dealt_only_to_full_clients_goes_to_an_open_one(seed):
    """With so small an alpha every class falls to one client, sooner or later to one that is full."""
    labels = balanced_labels(20, 10)
    split = dirichlet(labels, 4, alpha=1e-4, key=Key(seed), min_size=1)
    assert each_once(split, len(labels))
    assert max(sizes(split)) <= 60


def test_a_small_alpha_gives_clients_fewer_classes_than_a_large_one():
    labels = balanced_labels(10, 200)

    def mean_classes(alpha: float) -> float:
        drawn = [dirichlet(labels, 10, alpha=alpha, key=Key(seed)) for seed in range(5)]
        return float(np.mean([classes_by_client(split, labels) for split in drawn]))

    assert mean_classes(0.02) < 3
    assert mean_classes(0.02) < mean_classes(0.1) < mean_classes(1) < mean_classes(100)
    assert mean_classes(100) == 10


def test_a_huge_alpha_deals_every_class_evenly():
    labels = balanced_labels(10, 1000)
    counts = dirichlet(labels, 4, alpha=1e6, key=Key(0)).counts(labels, 10)
    assert all(abs(count - 250) <= 10 for of_client in counts.values() for count in of_client)


def test_shards_give_each_client_its_pieces_of_the_sorted_labels():
    labels = np.random.default_rng(0).permutation(balanced_labels(10, 60))
    split = shards_per_client(labels, 10, 2, Key(0))
    counts = split.counts(labels, 10)
    assert sizes(split) == [60] * 10
    assert all(set(of_client) <= {0, 30, 60} for of_client in counts.values())  # a piece is half a class
    assert max(classes_by_client(split, labels)) == 2


def test_one_shard_for_each_client_is_one_class_where_classes_and_clients_match():
    labels = balanced_labels(10, 60)
    assert classes_by_client(shards_per_client(labels, 10, 1, Key(0)), labels) == [1] * 10


@pytest.mark.parametrize(
    ("split", "words"),
    [
        (
            lambda labels: iid(labels, 101, Key(0)),
            ["TOO-FEW", "101 clients", "100 samples", "at most 100", "--clients"],
        ),
        (lambda labels: shards_per_client(labels, 101, 1, Key(0)), ["TOO-FEW", "101 clients", "at most 100"]),
        (
            lambda labels: dirichlet(labels, 101, alpha=1, key=Key(0), min_size=1),
            ["TOO-FEW", "101 clients", "at most 100"],
        ),
        (
            lambda labels: dirichlet(labels, 11, alpha=1, key=Key(0)),
            ["TOO-FEW", "11 clients", "at least 10", "110", "partition.clients", "partition.min_size"],
        ),
        (
            lambda labels: shards_per_client(labels, 50, 3, Key(0)),
            ["TOO-FEW", "150 samples", "100", "partition.clients", "partition.shards_per_client"],
        ),
        (
            lambda labels: dirichlet(labels, 50, alpha=0.001, key=Key(0), min_size=2, max_redraws=3),
            ["REDRAWS", "alpha 0.001", "3 redraws", "partition.alpha", "partition.clients", "partition.min_size"],
        ),
    ],
    ids=["iid", "shards", "dirichlet", "min_size", "pieces", "redraws"],
)
def test_what_cannot_be_split_says_what_to_change(split, words):
    with raises(f"FEDAF-PARTITION-{words[0]}") as error:
        split(balanced_labels(10, 10))
    assert all(word in str(error.value) for word in words[1:]), str(error.value)


def test_client_ids_sort_as_they_count():
    ids = client_ids(12)
    assert ids == sorted(ids)
    assert len(set(ids)) == 12


LABELS = balanced_labels(3, 8)


def saved(path) -> dict:
    """A split on disk, and its content to spoil."""
    path.write_text(dirichlet(LABELS, 3, alpha=0.5, key=Key(0), min_size=2).to_json(data_of(LABELS)))
    return json.loads(path.read_text())


@unhurried
@given(labels=labels_of_any_kind, clients=st.integers(1, 5), seed=seeds)
def test_a_saved_split_is_read_as_it_was(tmp_path_factory, labels, clients, seed):
    path = tmp_path_factory.getbasetemp() / "partition.json"
    split = Partition(iid(labels, clients, Key(seed)).rows, redraws=7)
    path.write_text(split.to_json(data_of(labels)))
    read = Partition.read(path, len(labels))
    assert same(read, split)
    assert read.redraws == 7
    assert json.loads(path.read_text())["counts"] == {
        name: [int((labels[rows] == label).sum()) for label in range(6)] for name, rows in split.rows.items()
    }


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "{}", '{"rows": 3, "redraws": 0}', '{"rows": {"a": "x"}, "redraws": 0}', '{"rows": {}}'],
)
def test_a_damaged_file_is_refused(tmp_path, text):
    path = tmp_path / "partition.json"
    path.write_text(text)
    with raises("FEDAF-PARTITION-FILE") as error:
        Partition.read(path, 24)
    assert str(path) in str(error.value)


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path):
    with raises("FEDAF-PARTITION-FILE"):
        Partition.read(tmp_path / "partition.json", 24)
    (tmp_path / "partition.json").write_bytes(b"\xff\xfe\x00")
    with raises("FEDAF-PARTITION-FILE"):
        Partition.read(tmp_path / "partition.json", 24)


def test_a_split_with_a_missing_a_double_or_a_foreign_sample_is_refused(tmp_path):
    path = tmp_path / "partition.json"
    content = saved(path)
    name, rows = max(content["rows"].items(), key=lambda item: len(item[1]))
    for spoilt in (rows[1:], [*rows, rows[0]], [rows[1], *rows[1:]], [24, *rows[1:]], [-1, *rows[1:]], [*rows, 24]):
        path.write_text(json.dumps({**content, "rows": {**content["rows"], name: spoilt}}))
        with raises("FEDAF-PARTITION-MISMATCH"):
            Partition.read(path, 24)


def test_a_split_of_another_data_set_is_refused(tmp_path):
    saved(tmp_path / "partition.json")
    Partition.read(tmp_path / "partition.json", 24)
    with raises("FEDAF-PARTITION-MISMATCH") as error:
        Partition.read(tmp_path / "partition.json", 25)
    assert "25 training samples" in str(error.value)


def test_half_a_sample_is_no_sample(tmp_path):
    path = tmp_path / "partition.json"
    content = saved(path)
    halves = {name: [row + 0.5 for row in rows] for name, rows in content["rows"].items()}
    path.write_text(json.dumps({**content, "rows": halves}))
    with raises("FEDAF-PARTITION-FILE"):
        Partition.read(path, 24)


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b", "é?", "x" * 65, "a\n"])
def test_a_client_name_that_is_no_file_name_is_refused(tmp_path, name):
    path = tmp_path / "partition.json"
    content = saved(path)
    rows = {name if i == 0 else old: r for i, (old, r) in enumerate(content["rows"].items())}
    path.write_text(json.dumps({**content, "rows": rows}))
    with raises("FEDAF-PARTITION-FILE") as error:
        Partition.read(path, 24)
    assert f"{name!r:.80}" in str(error.value)


@unhurried
@given(st.data())
def test_a_file_with_flipped_bytes_is_read_or_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "flipped.json"
    saved(path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        split = Partition.read(path, 24)
    except UserError:
        return
    assert each_once(split, 24)


def test_by_domain_each_domain_with_samples_is_a_client_called_like_it():
    split = by_domain(np.array([2, 0, 2, 2, 0]), ["photo", "empty", "oil & ink"])
    assert {name: rows.tolist() for name, rows in split.rows.items()} == {"photo": [1, 4], "oil---ink": [0, 2, 3]}


def test_domains_whose_names_fall_together_are_refused():
    with raises("FEDAF-PARTITION-DOMAINS"):
        by_domain(np.array([0, 1]), ["a b", "a/b"])


def test_shards_are_taken_out_of_the_data_set_with_their_labels():
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(5, 3, 2, 2)
    data = DataSet("five", Split(images, torch.arange(5)), Split(images, torch.arange(5)), 5, (0.5,) * 3, (0.25,) * 3)
    shards = Partition({"a": np.array([4, 0]), "b": np.array([1, 2, 3])}).shards(data)
    assert list(shards) == ["a", "b"]
    assert shards["a"].labels.tolist() == [4, 0]
    assert shards["a"].images[:, 0, 0, 0].tolist() == [4, 0]
    assert shards["a"].images.is_contiguous()
