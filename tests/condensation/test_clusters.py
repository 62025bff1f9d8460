"""Micro-aggregation: which images of a class are averaged together."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor

from fedaf.condensation.clusters import NO_CLUSTER, are_clusters_of, clusters_of, micro_aggregate
from fedaf.protocol import Key, Shard


def digits() -> Shard:
    data = load_digits()
    images = torch.from_numpy(data.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    return Shard(images, torch.from_numpy(data.target).long(), 10)


def members(clusters: Tensor) -> set[frozenset[int]]:
    return {frozenset((clusters == number).nonzero().flatten().tolist()) for number in clusters.unique().tolist()}


@given(count=st.integers(5, 150), size=st.integers(5, 20), seed=st.integers(0, 1000), dimension=st.integers(1, 4))
def test_clusters_cover_all_points_and_have_size_to_twice_size_points(count, size, seed, dimension):
    count = max(count, size)
    found = micro_aggregate(torch.randn(count, dimension, generator=Key(seed).torch()), size)
    sizes = found.bincount()
    assert len(found) == count
    assert int(found.min()) == 0
    assert all(size <= n < 2 * size for n in sizes.tolist())


@given(count=st.integers(5, 60), size=st.integers(5, 20))
def test_equal_points_are_split_too(count, size):
    count = max(count, size)
    sizes = micro_aggregate(torch.full((count, 3), 7.0), size).bincount()
    assert all(size <= n < 2 * size for n in sizes.tolist())


def test_points_on_a_line_are_grouped_with_their_neighbours():
    points = torch.tensor([3.0, 11.0, 1.0, 13.0, 2.0, 12.0])[:, None] * torch.tensor([[1.0, -2.0]])
    assert members(micro_aggregate(points, 3)) == {frozenset({0, 2, 4}), frozenset({1, 3, 5})}


def test_clusters_are_within_a_class_and_numbered_from_zero_in_each():
    shard = digits()
    clusters = clusters_of(shard, 10)
    for label, count in enumerate(shard.counts):
        of_class = clusters[shard.rows_of(label)]
        assert of_class.unique().tolist() == list(range(int(of_class.max()) + 1))
        assert int(of_class.max()) + 1 >= count // 20 + 1
        assert all(10 <= n < 20 for n in of_class.bincount().tolist())


def test_a_class_of_too_few_images_has_no_clusters():
    labels = torch.tensor([0] * 9 + [1] * 10 + [2] * 20)
    images = torch.randint(0, 256, (39, 1, 4, 4), dtype=torch.uint8, generator=Key(0).torch())
    clusters = clusters_of(Shard(images, labels, 4), 10)
    assert clusters[:9].eq(NO_CLUSTER).all()
    assert clusters[9:19].eq(0).all()
    assert sorted(clusters[19:].unique().tolist()) == [0, 1]


def test_clusters_depend_on_the_images_of_the_class_alone():
    """Neither on their order, nor on the other classes, nor on what was drawn before."""
    shard = digits()
    rows = shard.rows_of(3)
    images, labels = shard.images[rows], shard.labels[rows]
    expected = members(clusters_of(shard, 10)[rows])
    order = torch.randperm(len(rows), generator=Key(1).torch())
    torch.manual_seed(5)
    found = clusters_of(Shard(images[order], labels[order], 10), 10)
    back = torch.empty_like(found)
    back[order] = found
    assert members(back) == expected


def test_stored_clusters_are_recognised_unless_the_data_changed():
    shard = digits()
    clusters = clusters_of(shard, 10)
    assert are_clusters_of(clusters, shard, 10)
    assert not are_clusters_of(clusters, shard, 20)
    assert not are_clusters_of(clusters[:-1], shard, 10)
    assert not are_clusters_of(torch.full_like(clusters, NO_CLUSTER), shard, 10)
    order = torch.randperm(len(shard), generator=Key(1).torch())
    assert not are_clusters_of(clusters, Shard(shard.images, shard.labels[order], 10), 10)


@pytest.mark.parametrize("shape", [(1, 3, 3), (3, 32, 32), (1, 28, 20)])
def test_images_of_any_size_are_clustered(shape):
    images = torch.randint(0, 256, (23, *shape), dtype=torch.uint8, generator=Key(0).torch())
    sizes = clusters_of(Shard(images, torch.zeros(23, dtype=torch.int64), 1), 5).bincount()
    assert int(sizes.sum()) == 23
    assert all(5 <= n < 10 for n in sizes.tolist())


def kept_variance(images: Tensor, clusters: Tensor) -> float:
    """The variance of the cluster means, each weighted by its members, as a share of the images' variance."""
    centre = images.mean(0)
    total = (images - centre).square().sum()
    groups = [images[clusters == number] for number in clusters.unique()]
    return float(sum(len(group) * (group.mean(0) - centre).square().sum() for group in groups) / total)


def test_means_of_clusters_keep_far_more_of_the_variance_than_means_of_random_groups():
    """About 0.5 of the variance of a class of digits, where random groups keep 1 / size."""
    shard = digits()
    clusters, kept, at_random = clusters_of(shard, 10), [], []
    for label in range(10):
        rows = shard.rows_of(label)
        images, of_class = shard.images[rows].flatten(1).float(), clusters[rows]
        kept.append(kept_variance(images, of_class))
        at_random.append(kept_variance(images, of_class[torch.randperm(len(rows), generator=Key(label).torch())]))
    print(f"kept {min(kept):.2f} to {max(kept):.2f}, at random {min(at_random):.2f} to {max(at_random):.2f}")
    assert min(kept) > 0.3
    assert max(at_random) < 0.15
