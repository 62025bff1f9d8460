import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from fedaf.condensation.clusters import clusters_of
from fedaf.condensation.initialisation import NO_SOURCE, initial_images
from fedaf.condensation.options import CondensationOptions
from fedaf.data.pixels import normalise
from fedaf.methods.fedaf import FedAF, FedAFOptions
from fedaf.models.convnet import ConvNet
from fedaf.protocol import Architecture, Key, Shard, Task

TASK = Task("tiny", 2, 3, 3, 3, mean=(0.5, 0.2), std=(0.25, 0.5))
CLASSES = [0, 2]


def make_shard(per_class: int = 12) -> Shard:
    labels = torch.arange(3).repeat(per_class)
    images = torch.randint(0, 256, (len(labels), 2, 3, 3), dtype=torch.uint8, generator=Key(0).torch())
    return Shard(images, labels, 3)


def test_mean_init_is_the_mean_of_the_images_its_sources_name() -> None:
    shard, options = make_shard(), CondensationOptions(ipc=4, init_mean_of=6)
    images, sources = initial_images(shard, CLASSES, options, TASK, Key(1))
    assert images.shape == (2, 4, 2, 3, 3)
    assert sources.shape == (2, 4, 6)
    for i in range(2):
        for j in range(4):
            named = normalise(shard.images[sources[i, j]], TASK.mean, TASK.std)
            torch.testing.assert_close(images[i, j], named.mean(0))


def test_the_sources_of_a_mean_are_distinct_and_of_its_class() -> None:
    shard, options = make_shard(per_class=20), CondensationOptions(ipc=20, init_mean_of=10)
    _, sources = initial_images(shard, CLASSES, options, TASK, Key(1))
    for i, label in enumerate(CLASSES):
        assert shard.labels[sources[i]].eq(label).all()
        assert all(len(set(rows.tolist())) == 10 for rows in sources[i])
        assert set(sources[i].flatten().tolist()) == set(shard.rows_of(label).tolist()), "every image has its chance"


def test_a_mean_takes_at_most_half_of_a_small_class_so_that_images_differ() -> None:
    shard, options = make_shard(per_class=10), CondensationOptions(ipc=8, init_mean_of=10)
    images, sources = initial_images(shard, [1], options, TASK, Key(1))
    assert sources.shape == (1, 8, 10)
    assert all(int((rows != NO_SOURCE).sum()) == 5 for rows in sources[0])
    assert len({tuple(image.flatten().tolist()) for image in images[0]}) == 8
    named = normalise(shard.images[sources[0, 0, :5]], TASK.mean, TASK.std)
    torch.testing.assert_close(images[0, 0], named.mean(0))


def test_means_differ_from_each_other() -> None:
    _, sources = initial_images(make_shard(), [1], CondensationOptions(ipc=8, init_mean_of=6), TASK, Key(1))
    assert len({tuple(sorted(rows.tolist())) for rows in sources[0]}) > 4


def clusters_and_means(shard: Shard, label: int) -> tuple[Tensor, Tensor]:
    """The clusters of five or more of a class, and the means of their normalised images."""
    rows = shard.rows_of(label)
    clusters = clusters_of(shard, 5)[rows]
    images = normalise(shard.images[rows], TASK.mean, TASK.std)
    return clusters, torch.stack([images[clusters == number].mean(0) for number in clusters.unique()])


def named(sources: Tensor) -> set[int]:
    return set(sources[sources != NO_SOURCE].tolist())


def test_cluster_init_is_the_mean_of_one_cluster_each_without_repetition():
    shard, options = make_shard(per_class=60), CondensationOptions(ipc=4, init="clusters", init_mean_of=5)
    images, sources = initial_images(shard, CLASSES, options, TASK, Key(1))
    assert (images.shape, sources.shape) == ((2, 4, 2, 3, 3), (2, 4, 20))
    for i, label in enumerate(CLASSES):
        rows, (clusters, means) = shard.rows_of(label), clusters_and_means(shard, label)
        assert len(means) > 4
        chosen = torch.cdist(images[i].flatten(1), means.flatten(1)).argmin(1)
        assert len(set(chosen.tolist())) == 4
        torch.testing.assert_close(images[i], means[chosen])
        for j, number in enumerate(chosen):
            assert named(sources[i, j]) == set(rows[clusters == number].tolist())


def test_with_fewer_clusters_than_images_the_others_are_mixtures_of_two_means():
    shard, options = make_shard(per_class=17), CondensationOptions(ipc=30, init="clusters", init_mean_of=5)
    images, sources = initial_images(shard, CLASSES, options, TASK, Key(1))
    for i, label in enumerate(CLASSES):
        rows, (clusters, means) = shard.rows_of(label), clusters_and_means(shard, label)
        flat = means.flatten(1).double()
        shares = images[i].flatten(1).double() @ torch.linalg.pinv(flat)
        torch.testing.assert_close(shares @ flat, images[i].flatten(1).double(), rtol=0, atol=1e-5)
        torch.testing.assert_close(shares.sum(1), torch.ones(30).double(), rtol=0, atol=1e-4)
        assert shares.min() > -1e-4
        used = shares > 1e-3
        assert used[: len(means)].sum(1).eq(1).all()
        assert used[len(means) :].sum(1).eq(2).all()
        assert used[: len(means)].any(0).all(), "every cluster comes first by itself"
        for j in range(30):
            members = {int(row) for number in used[j].nonzero().flatten() for row in rows[clusters == number]}
            assert named(sources[i, j]) == members


def test_images_of_a_single_cluster_differ_by_noise_only():
    shard, options = make_shard(per_class=9), CondensationOptions(ipc=6, init="clusters", init_mean_of=5)
    images, sources = initial_images(shard, CLASSES, options, TASK, Key(1))
    for i, label in enumerate(CLASSES):
        _, (mean,) = clusters_and_means(shard, label)
        torch.testing.assert_close(images[i, 0], mean)
        noise = images[i, 1:] - mean
        assert 0.05 < noise.std() < 0.2
        assert len(noise.flatten(1).unique(dim=0)) == 5
        assert all(named(of) == set(shard.rows_of(label).tolist()) for of in sources[i])


def residual(images: Tensor, means: Tensor) -> float:
    """The largest distance of an image from the span of the cluster means."""
    span, flat = means.flatten(1).double(), images.flatten(1).double()
    return float((flat - flat @ torch.linalg.pinv(span) @ span).norm(dim=1).max())


def test_every_round_starts_from_means_of_the_same_clusters():
    shard, options = make_shard(per_class=37), CondensationOptions(ipc=12, init="clusters", init_mean_of=5)
    _, means = clusters_and_means(shard, 1)
    rounds = [initial_images(shard, [1], options, TASK, Key(k))[0][0] for k in range(5)]
    assert all(residual(images, means) < 1e-4 for images in rounds)
    assert not torch.isclose(rounds[0], rounds[1]).all()
    random, _ = initial_images(shard, [1], CondensationOptions(ipc=12, init_mean_of=5), TASK, Key(0))
    assert residual(random[0], means) > 0.1


def test_clusters_that_are_known_are_not_computed_again():
    shard, options = make_shard(per_class=30), CondensationOptions(ipc=12, init="clusters", init_mean_of=5)
    expected = initial_images(shard, CLASSES, options, TASK, Key(1))
    again = initial_images(shard, CLASSES, options, TASK, Key(1), clusters_of(shard, 5))
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
    one = torch.zeros(len(shard), dtype=torch.int64)
    one[shard.rows_of(0)[:9]] = 1
    _, sources = initial_images(shard, [0], CondensationOptions(ipc=2, init="clusters"), TASK, Key(1), one)
    assert {len(named(s)) for s in sources[0]} == {9, 21}


def test_noise_has_no_sources_and_does_not_look_at_the_data() -> None:
    options = CondensationOptions(ipc=50, init="noise")
    images, sources = initial_images(make_shard(), CLASSES, options, TASK, Key(1))
    assert images.shape == (2, 50, 2, 3, 3)
    assert sources.shape == (2, 50, 0)
    assert abs(images.mean().item()) < 5 / images.numel() ** 0.5
    assert images.std().item() == pytest.approx(1, abs=0.1)
    no_data = Shard(torch.empty(0, 2, 3, 3, dtype=torch.uint8), torch.empty(0, dtype=torch.int64), 3)
    assert torch.equal(initial_images(no_data, CLASSES, options, TASK, Key(1))[0], images)


@pytest.mark.parametrize("ipc", [5, 12, 30])
def test_real_init_is_the_source_itself_and_repeats_only_when_it_must(ipc: int) -> None:
    shard, options = make_shard(), CondensationOptions(ipc=ipc, init="real", allow_real_init=True)
    images, sources = initial_images(shard, CLASSES, options, TASK, Key(1))
    assert sources.shape == (2, ipc, 1)
    for i, label in enumerate(CLASSES):
        assert torch.equal(images[i], normalise(shard.images[sources[i, :, 0]], TASK.mean, TASK.std))
        assert shard.labels[sources[i]].eq(label).all()
        assert len(sources[i].unique()) == min(ipc, 12)


@pytest.mark.parametrize(
    "options",
    [
        CondensationOptions(ipc=3),
        CondensationOptions(ipc=3, init="noise"),
        CondensationOptions(ipc=3, init="clusters", init_mean_of=5),
        CondensationOptions(ipc=3, init="real", allow_real_init=True),
    ],
)
def test_the_start_depends_on_the_key_alone(options: CondensationOptions) -> None:
    shard = make_shard()
    first, again, other = (initial_images(shard, CLASSES, options, TASK, Key(k)) for k in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_no_classes_give_no_images() -> None:
    images, sources = initial_images(make_shard(), [], CondensationOptions(ipc=3), TASK, Key(1))
    assert images.shape == (0, 3, 2, 3, 3)
    assert len(sources) == 0


def test_real_init_must_be_allowed_by_name() -> None:
    with pytest.raises(ValidationError, match="allow_real_init"):
        CondensationOptions(init="real")
    assert CondensationOptions(init="real", allow_real_init=True).init == "real"


def test_a_mean_of_fewer_than_five_images_is_refused() -> None:
    with pytest.raises(ValidationError, match="init_mean_of"):
        CondensationOptions(init_mean_of=4)


@pytest.mark.parametrize(
    ("given", "threshold"),
    [
        ({}, 50),
        ({"ipc": 3}, 10),
        ({"ipc": 3, "init_mean_of": 7}, 7),
        ({"ipc": 50, "min_samples": 20}, 20),
        ({"ipc": 5, "min_samples": 20}, 20),
        ({"ipc": 50, "min_samples": 6}, 10),
        ({"ipc": 3, "init": "noise"}, 3),
        ({"ipc": 3, "init": "clusters"}, 10),
        ({"ipc": 3, "init": "clusters", "init_mean_of": 20}, 20),
        ({"ipc": 50, "init": "clusters"}, 50),
        ({"ipc": 3, "min_samples": 1, "init": "real", "allow_real_init": True}, 1),
    ],
)
def test_a_client_condenses_a_class_from_ipc_or_min_samples_on_but_never_below_what_a_mean_needs(
    given: dict[str, object], threshold: int
) -> None:
    options = FedAFOptions.model_validate(given)
    assert options.threshold == threshold
    method = FedAF(options, TASK, Architecture(lambda key: ConvNet(2, 3, 3, 3, depth=1, filters=2)))
    assert method.condensed_classes([threshold - 1, threshold, threshold + 1]) == [1, 2]
