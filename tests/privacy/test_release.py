"""A release: one image moves it by no more than the guarantee assumes, whatever its features are."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor

from fedaf.condensation.resampling import Fixed, Fresh
from fedaf.engine import EagerEngine
from fedaf.models.backbone import Backbone
from fedaf.models.statistics import reference_images
from fedaf.models.weights import FreshWeights
from fedaf.privacy import release as release_module
from fedaf.privacy.features import BoundedOutputs, release_cost, release_network
from fedaf.privacy.noise import seeded_bytes
from fedaf.privacy.release import LATTICE, Release, add_count_noise, add_noise, class_sums, on_lattice
from fedaf.protocol import Key, Task
from support.zoo import build

TASK = Task("digits", 1, 8, 8, 10, mean=(0.3,), std=(0.37,))
CLASSES, WIDTH = 3, 4
BAD = [0.0, -0.0, 1e-45, 1.0, -1.0, 1e4, -1e30, 3.4e38, math.inf, -math.inf, math.nan]

numbers = st.one_of(st.sampled_from(BAD), st.floats(-3, 3, width=32))
vectors = st.lists(numbers, min_size=WIDTH, max_size=WIDTH)


@st.composite
def data(draw) -> tuple[list[Tensor], Tensor]:
    """The features of up to 8 images under 1 to 3 networks, and their labels."""
    images, networks = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    blocks = [torch.tensor([draw(vectors) for _ in range(images)]) for _ in range(networks)]
    return blocks, torch.tensor([draw(st.integers(0, CLASSES - 1)) for _ in range(images)])


def of(blocks: Sequence[Tensor], labels: Tensor) -> tuple[Tensor, Tensor]:
    """The exact sums and counts that a release adds noise to."""
    return class_sums(blocks, labels, CLASSES), torch.bincount(labels, minlength=CLASSES)


def squared_norm(difference: Tensor) -> int:
    """In Python's integers, which do not overflow."""
    return sum(value * value for value in difference.flatten().tolist())


def assert_neighbours(blocks: Sequence[Tensor], labels: Tensor, row: int) -> None:
    """Check what the guarantee assumes of the data with and without one image."""
    sums, counts = of(blocks, labels)
    kept = torch.arange(len(labels)) != row
    fewer_sums, fewer_counts = of([block[kept] for block in blocks], labels[kept])
    label = int(labels[row])
    others = torch.arange(CLASSES) != label
    assert torch.equal(sums[others], fewer_sums[others])
    assert torch.equal(counts[others], fewer_counts[others])
    assert int(counts[label] - fewer_counts[label]) == 1
    for block in range(len(blocks)):
        assert squared_norm(sums[label, block] - fewer_sums[label, block]) <= LATTICE**2
    assert squared_norm(sums - fewer_sums) <= len(blocks) * LATTICE**2


@given(data(), st.data())
@settings(deadline=None, max_examples=200)
def test_removing_an_image_moves_one_class_by_at_most_the_sensitivity(drawn, choice):
    blocks, labels = drawn
    assert_neighbours(blocks, labels, choice.draw(st.integers(0, len(labels) - 1)))


@given(data(), st.randoms())
@settings(deadline=None, max_examples=100)
def test_sums_do_not_depend_on_the_order_of_images(drawn, shuffle):
    blocks, labels = drawn
    order = list(range(len(labels)))
    shuffle.shuffle(order)
    assert torch.equal(
        class_sums(blocks, labels, CLASSES), class_sums([b[order] for b in blocks], labels[order], CLASSES)
    )


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_image_with_extreme_features_is_bounded_and_spoils_no_other(value, dtype):
    ordinary = torch.tensor([[0.3, -0.2, 0.1, 0.0], [0.5, 0.5, 0.5, 0.5]], dtype=dtype)
    extreme = torch.full((1, WIDTH), value, dtype=dtype)
    labels = torch.tensor([0, 1, 1])
    assert_neighbours([torch.cat([ordinary, extreme])] * 2, labels, 2)
    mixed = ordinary[:1].clone()
    mixed[0, 1] = value
    assert_neighbours([torch.cat([ordinary, mixed])] * 2, labels, 2)


def test_values_that_are_not_finite_become_zero():
    given = torch.tensor([[math.nan, 0.6, math.inf, -math.inf]])
    expected = [0, math.trunc(0.6 * LATTICE), 0, 0]
    for found, wanted in zip(on_lattice(given)[0].tolist(), expected, strict=True):
        assert abs(found - wanted) <= 2


def test_the_largest_float64_has_no_more_weight_than_any_other_image():
    points = on_lattice(torch.full((1, WIDTH), torch.finfo(torch.float64).max, dtype=torch.float64))
    assert squared_norm(points) <= LATTICE**2


@given(st.integers(1, 2000), st.integers(0, 10**6))
@settings(deadline=None, max_examples=50)
def test_truncation_never_lengthens_a_vector_of_norm_one(width, seed):
    """Rounding to the nearest point would: equal coordinates could all grow by half a step."""
    for vector in (torch.randn(1, width, generator=Key(seed).torch()), torch.ones(1, width)):
        assert squared_norm(on_lattice(vector / vector.norm())) <= LATTICE**2


def test_a_vector_beyond_the_bound_stops_the_release(monkeypatch):
    monkeypatch.setattr(release_module, "_SHRINK", 1 + 1e-5)
    with pytest.raises(AssertionError, match="exceeds the bound"):
        on_lattice(torch.ones(1, 1))


def test_a_duplicated_outlier_moves_the_sum_by_one_bound_for_each_copy():
    outlier = torch.tensor([[1e30, -1e30, 0.0, 1e30]])
    blocks, labels = [outlier.repeat(5, 1)] * 2, torch.zeros(5, dtype=torch.int64)
    for row in range(5):
        assert_neighbours(blocks, labels, row)
    assert squared_norm(class_sums(blocks, labels, CLASSES)) <= 2 * (5 * LATTICE) ** 2


def test_classes_of_one_image_and_of_none_are_released_with_the_same_noise():
    blocks, labels = [torch.tensor([[0.5, 0.0, 0.0, 0.0]])], torch.tensor([1])
    sums, counts = of(blocks, labels)
    assert counts.tolist() == [0, 1, 0]
    assert sums[[0, 2]].eq(0).all()
    noisy, alone = add_noise(sums, 1.0, seeded_bytes(0)), add_noise(torch.zeros_like(sums), 1.0, seeded_bytes(0))
    assert torch.equal(noisy - sums, alone)
    assert alone.ne(0).all()  # a class without images has noise too: nobody sees that it is empty
    assert add_count_noise(counts, 1e6, seeded_bytes(0)).ne(counts).all()


def test_a_client_without_images_makes_a_release_like_any_other():
    nothing = torch.zeros(0, dtype=torch.int64)
    features = network_features("convnet", "batch")
    sums = class_sums(features.of_images(torch.zeros(0, 1, 8, 8, dtype=torch.uint8), TASK), nothing, 10)
    some = class_sums(features.of_images(digits(3), TASK), torch.tensor([0, 1, 2]), 10)
    assert sums.shape == some.shape
    assert sums.eq(0).all()


def test_means_and_classes_of_a_release_in_closed_form():
    sums = torch.tensor([[[2, -4]], [[6, 0]], [[1, 1]]]) * LATTICE
    counts, logits = torch.tensor([2, 12, -5]), torch.tensor([[2, 4, 6], [12, 0, 0], [3, 3, 3]]) * LATTICE
    release = Release(sums, counts, logits, {"w": torch.ones(1)})
    assert release.means([0, 1, 2]).tolist() == [[[1, -2]], [[0.5, 0]], [[1, 1]]]  # a count below 1 is 1
    assert release.mean_logits([1, 0]).tolist() == [[1, 0, 0], [1, 2, 3]]
    assert release.classes(6, noise=2.0) == [1]
    assert release.classes(6, noise=2.1) == []
    again = Release.from_tensors(release.to_tensors())
    assert torch.equal(again.sums, sums)
    assert torch.equal(again.counts, counts)
    assert again.knowledge is not None
    assert list(again.weights) == ["w"]
    assert Release.from_tensors(replace(release, knowledge=None).to_tensors()).knowledge is None


NETWORKS = [("convnet", "batch"), ("convnet", "group"), ("resnet18", "batch"), ("resnet18", "group")]
CPU = torch.device("cpu")


def network_features(
    name: str, norm: str, device: torch.device = CPU, *, logits: bool = False, distribution: float = 0.0
) -> BoundedOutputs:
    """The features of two networks of a release, or the logits of one."""
    model = build(name, TASK, Key(0), depth=2, width=8, norm=norm, groups=4)
    backbone, engine = Backbone(model, TASK, device), EagerEngine(device)
    reference, weights = reference_images(TASK, Key(1)), model.to(device).state_dict()
    if logits:
        return BoundedOutputs(Fixed(weights), 1, backbone, reference, engine, logits=True)
    networks = Fresh(weights, FreshWeights(model), Key(2), backbone, reference.to(device))
    count = 2 if name == "convnet" else 1
    return BoundedOutputs(networks, count, backbone, reference, engine, distribution=distribution)


def digits(count: int) -> Tensor:
    images = torch.from_numpy(load_digits().images[:count])
    return images.mul(255 / 16).round().to(torch.uint8).unsqueeze(1)


def points(features: BoundedOutputs, images: Tensor) -> Tensor:
    """Bounded features [images, networks, D]."""
    return torch.stack(list(features.of_images(images, TASK)), dim=1)


def assert_alone_as_in_any_company(features: BoundedOutputs, count: int = 150) -> None:
    images = digits(count)
    together = points(features, images)
    order = torch.randperm(count, generator=Key(3).torch())
    assert torch.equal(points(features, images[order]), together[order])
    kept = torch.arange(count) != 17  # all later images move, one of them into another batch
    assert torch.equal(points(features, images[kept]), together[kept])
    for row in (0, 17, 140):
        assert torch.equal(points(features, images[row : row + 1]), together[row : row + 1])
    strange = torch.full((40, 1, 8, 8), 255, dtype=torch.uint8)
    assert torch.equal(points(features, torch.cat([strange, images[:20]]))[40:], together[:20])
    assert not torch.equal(together[0], together[1])


@pytest.mark.parametrize(("name", "norm"), NETWORKS)
@pytest.mark.parametrize("threads", [1, 2])  # two threads may divide a batch
def test_an_images_features_are_the_same_bits_in_any_company(name, norm, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_alone_as_in_any_company(network_features(name, norm))
    finally:
        torch.set_num_threads(before)


def test_an_images_logits_are_the_same_bits_in_any_company():
    assert_alone_as_in_any_company(network_features("convnet", "batch", logits=True))


def test_what_describes_the_spread_is_the_same_bits_in_any_company_and_bounded():
    features = network_features("convnet", "batch", distribution=1.0)
    assert_alone_as_in_any_company(features)
    found = points(features, digits(100))
    phi, psi = found[..., :-256] * math.sqrt(2), found[..., -256:] * math.sqrt(2)
    plain = points(network_features("convnet", "batch"), digits(100))
    assert torch.allclose(phi, plain, atol=1e-6)
    assert psi.norm(dim=-1).max() <= 1
    assert found.norm(dim=-1).max() <= 1 + 1e-6
    assert psi.abs().max() > 0.9 / 16  # cosines, divided by the root of their number


@pytest.mark.parametrize(
    ("side", "features"), [(4, 32), (8, 32), (20, 4 * 32), (28, 16 * 32), (32, 16 * 32), (64, 64 * 32)]
)
def test_the_networks_of_a_release_fit_images_of_any_size(side, features):
    task = Task("any", 3, side, side, 7, mean=(0.5,) * 3, std=(0.25,) * 3)
    assert Backbone(release_network(task, 32), task, CPU).num_features == features


def test_the_cost_of_a_releases_network_is_counted_in_passes_through_the_model():
    """A convolution of w to w channels has w^2 multiplications per pixel, and that of 1 to w channels has w."""
    task = Task("any", 1, 32, 32, 10, mean=(0.5,), std=(0.25,))

    def multiplications(w: int) -> int:
        return 9 * (w * 32**2 + w * w * 16**2 + w * w * 8**2) + 10 * w * 4**2

    found = release_cost(release_network(task, 128), task, 32)
    assert found == pytest.approx(multiplications(32) / multiplications(128))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "norm"), NETWORKS)
def test_an_images_features_are_the_same_bits_in_any_company_on_a_gpu(name, norm):
    assert_alone_as_in_any_company(network_features(name, norm, torch.device("cuda")))


@pytest.mark.parametrize(("name", "norm"), NETWORKS[:2])
def test_batch_statistics_would_be_caught(name, norm, monkeypatch):
    """The fault: features that depend on the other images of the batch."""
    features = network_features(name, norm)
    raw = features._raw
    monkeypatch.setattr(features, "_raw", lambda weights, images: raw(weights, images - images.mean(0)))
    with pytest.raises(AssertionError):
        assert_alone_as_in_any_company(features)


@pytest.mark.parametrize(("name", "norm"), NETWORKS[:2])
def test_features_are_bounded_and_not_all_alike(name, norm):
    found = points(network_features(name, norm), digits(100))
    norms = found.norm(dim=2)
    assert norms.max() <= 1 + 1e-6
    assert found.std(0).max() > 0.01


def test_condensed_images_pass_through_the_same_clip_as_real_ones():
    features = network_features("convnet", "batch")
    images = digits(5)
    bounded = points(features, images)
    for number in range(features.count):
        features.draw(number)
        raw = features._raw(features.weights(), (images / 255 - TASK.mean[0]) / TASK.std[0])
        torch.testing.assert_close(features.bounded(raw), bounded[:, number])
        short = raw[features.bounded(raw).norm(dim=1) < 1 - 1e-4]
        torch.testing.assert_close(features.unbounded(features.bounded(short)), short)
