"""The one-run membership audit: its bounds hold, leaks are found, and a fault of a private mechanism is caught."""

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from scipy.special import ndtri
from scipy.stats import beta, multivariate_normal
from sklearn.metrics import roc_auc_score
from torch import Tensor

from fedaf import config as configuration
from fedaf.privacy.accountant import epsilon_of, mu_of
from fedaf.privacy.canaries import Canaries
from fedaf.privacy.half_out import half_out
from fedaf.privacy.membership import Membership, Population, auc, audit_release, measure, membership_scores
from fedaf.privacy.noise import ByteSource, seeded_bytes
from fedaf.privacy.one_run_bounds import epsilon_bound, gaussian_bound
from fedaf.privacy.random_features import RandomFeatures, class_means
from fedaf.privacy.release import LATTICE, add_noise, class_sums
from fedaf.protocol import Key, Task
from fedaf.runs.audit import single_client
from fedaf.runs.experiment import prepare

DELTA = 1e-5
SIGMA = 3.731  # noise for epsilon 1 at delta 1e-5, with sensitivity 1
DRAWS = 20


def chance(r: int, v: int, m: int, epsilon: float, delta: float) -> float:
    """The formula of Steinke et al., Theorem 5.2, term by term."""
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    p = [math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(r + 1)]
    alpha = max(sum(p[v - i : v]) / i for i in range(1, v + 1))
    return sum(p[v:]) + 2 * m * delta * alpha


@pytest.mark.parametrize(
    ("r", "v", "m", "delta", "sizes"), [(10, 10, 10, 0, 1), (20, 18, 30, 1e-3, 1), (30, 26, 30, 1e-5, 3)]
)
def test_the_bound_is_where_the_chance_of_the_guesses_reaches_the_level(r, v, m, delta, sizes):
    bound = epsilon_bound(r, v, m, delta, 0.95, sizes)
    assert bound > 0
    assert chance(r, v, m, bound - 1e-6, delta) < 0.05 / sizes < chance(r, v, m, bound + 1e-6, delta)


def test_without_delta_all_guesses_right_have_a_closed_form():
    q = 0.05 ** (1 / 50)
    assert epsilon_bound(50, 50, 50, 0) == pytest.approx(math.log(q / (1 - q)))


@pytest.mark.parametrize("bound", [epsilon_bound, gaussian_bound])
def test_half_of_the_guesses_right_prove_nothing(bound):
    assert bound(100, 50, 100, DELTA) == 0
    assert bound(100, 0, 100, DELTA) == 0
    assert bound(100, 100, 100, DELTA) > 3


@pytest.mark.parametrize("bound", [epsilon_bound, gaussian_bound])
def test_impossible_counts_are_refused(bound):
    with pytest.raises(ValueError, match="impossible"):
        bound(10, 11, 20, DELTA)
    with pytest.raises(ValueError, match="impossible"):
        bound(30, 11, 20, DELTA)


@pytest.mark.parametrize(("z", "epsilon"), [(3.731, 1), (1.081, 4), (0.600, 8)])
def test_epsilon_of_a_gaussian_mechanism(z, epsilon):
    assert epsilon_of(1 / z, DELTA) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("level", [0.6, 0.8, 0.95])
def test_a_single_guess_has_the_closed_form_of_the_gaussian_bound(level):
    """The best guess of one bit under mu-GDP is right with probability Phi(mu / 2)."""
    expected = epsilon_of(2 * float(ndtri(level)), DELTA)
    assert gaussian_bound(1, 1, 2, DELTA, confidence=1 - level) == pytest.approx(expected, rel=1e-6)


def gaussian_run(mu: float, seed: int, count: int = 1000) -> tuple[Tensor, Tensor]:
    """The scores of canaries that each have a Gaussian mechanism of their own: the best case for an auditor."""
    generator = Key(seed).torch()
    included = torch.rand(count, generator=generator) < 0.5
    return torch.randn(count, generator=generator) + mu * included, included


@pytest.mark.parametrize("epsilon", [1, 4])
def test_no_bound_exceeds_the_truth_of_a_gaussian_mechanism(epsilon):
    mu = 1 / {1: 3.731, 4: 1.081}[epsilon]
    found = [measure(*gaussian_run(mu, seed, 300)) for seed in range(100)]
    assert sum(each.epsilon > epsilon for each in found) <= 5
    assert sum(each.gaussian_epsilon > epsilon for each in found) <= 5


def test_the_gaussian_bound_is_tighter_and_not_empty():
    found = [measure(*gaussian_run(1 / 1.081, seed)) for seed in range(10)]
    assert all(each.gaussian_epsilon > each.epsilon for each in found)
    assert sum(each.gaussian_epsilon for each in found) / 10 > 1.5  # 1.84 of 4


def test_auc_is_that_of_scikit_learn_also_with_ties():
    scores, included = gaussian_run(0.5, 0)
    for each in (scores, scores.round()):
        assert auc(each, included) == pytest.approx(roc_auc_score(included, each))
    assert auc(scores, torch.ones(1000, dtype=torch.bool)) == 0.5


@pytest.mark.parametrize("width", [3, 40])
def test_whitening_multiplies_by_the_inverse_of_the_covariance(width):
    features = torch.randn(20, width, generator=Key(0).torch(), dtype=torch.float64)
    others = torch.randn(4, width, generator=Key(1).torch(), dtype=torch.float64)
    population = Population.of(features, torch.arange(20) % 2, 2, shrinkage=0.2)
    within = population.residuals.T @ population.residuals / 20
    identity = torch.eye(width, dtype=torch.float64)
    sigma = 0.8 * within + (0.2 * within.trace() / width + 0.3) * identity + others.T @ others
    torch.testing.assert_close(population.whitened(features, others, 0.3), torch.linalg.solve(sigma, features.T).T)


def test_without_the_other_canaries_the_score_is_the_log_likelihood_ratio_up_to_a_constant():
    """Moving a Gaussian by x changes the log density at R by <Sigma^-1 x, R - mean> - <Sigma^-1 x, x> / 2."""
    features = torch.randn(50, 3, generator=Key(0).torch(), dtype=torch.float64)
    population = Population.of(features, torch.zeros(50, dtype=torch.int64), 1, shrinkage=0.0)
    canary, released = torch.randn(2, 1, 3, generator=Key(1).torch(), dtype=torch.float64)
    sigma = (population.residuals.T @ population.residuals / 50).numpy()
    mean, moved = population.mean[0], canary[0]
    densities = [multivariate_normal(at.numpy(), sigma).logpdf(released[0].numpy()) for at in (moved, mean)]
    direction = moved - mean
    half = float(population.whitened(direction[None])[0] @ direction) / 2
    score = membership_scores(canary, torch.zeros(1, dtype=torch.int64), population, released)
    assert float(score) - half == pytest.approx(densities[0] - densities[1])


def test_a_class_of_which_nothing_was_released_scores_zero():
    features = torch.randn(10, 3, generator=Key(0).torch())
    labels = torch.arange(10) % 2
    population = Population.of(features, labels, 2)
    released = torch.stack([torch.full((3,), torch.nan), torch.ones(3)])
    scores = membership_scores(features, labels, population, released)
    assert scores[0::2].eq(0).all()
    assert scores[1::2].ne(0).all()


def test_canaries_follow_from_their_key_and_about_half_are_in():
    task = Task("bw", 3, 4, 4, 5, (0.5,) * 3, (0.25,) * 3)
    first, again, other = (Canaries.black_and_white(task, 400, Key(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.included, again.included)
    assert not torch.equal(first.included, other.included)
    assert first.images.unique().tolist() == [0, 255]
    assert torch.bincount(first.labels).tolist() == [80] * 5
    assert 160 < int(first.included.sum()) < 240
    assert len(first.members[1]) == int(first.included.sum())


def test_exact_class_means_give_outliers_away():
    """AUC 0.88 and epsilon at least 2.1, on average over seeds."""
    config = configuration.build({"data": {"name": "digits"}, "run": {"device": "cpu"}})
    experiment = prepare(single_client(config))
    train, test = experiment.dataset.train, experiment.dataset.test
    features = RandomFeatures(experiment.method, experiment.engine.device, 4, Key(1))
    canaries = Canaries.black_and_white(experiment.task, 500, Key(0))
    images, labels = canaries.members
    whole = features(torch.cat([train.images, images]))
    released = class_means(whole, torch.cat([train.labels, labels]), 10)
    population = Population.of(features(test.images), test.labels, 10)
    found = audit_release(canaries, features, population, released, torch.bincount(train.labels).tolist())
    assert 0.85 < found.auc < 0.95
    assert found.epsilon > 1.5
    assert found.gaussian_epsilon > found.epsilon


SIDE, CLASSES, CANARIES = 64, 2, 1000
BLACK_AND_WHITE = Task("bw", 1, SIDE, SIDE, CLASSES, (0.5,), (0.25,))


def unit_features(images: Tensor) -> Tensor:
    """Pixels as a vector of norm 1, so the sensitivity of a sum is 1."""
    return (images.flatten(1).double() / 127.5 - 1) / SIDE


@cache
def sums() -> tuple[Canaries, Tensor, list[int]]:
    """Canaries, the sums that a release adds noise to with those that are in, and the images besides them."""
    canaries = Canaries.black_and_white(BLACK_AND_WHITE, CANARIES, Key(5))
    others = Canaries.black_and_white(BLACK_AND_WHITE, 200, Key(6))
    images, labels = canaries.members
    together = unit_features(torch.cat([images, others.images]))
    return canaries, class_sums([together], torch.cat([labels, others.labels]), CLASSES), [100, 100]


Mechanism = Callable[[Tensor, float, ByteSource], Tensor]


def noise_drawn_anew(exact: Tensor, multiplier: float, source: ByteSource) -> Tensor:
    """The fault: fresh noise at every step on the same exact sums, which averages out."""
    return torch.stack([add_noise(exact, multiplier, source).double() for _ in range(DRAWS)]).mean(0)


def audited(mechanism: Mechanism, multiplier: float, seed: int = 0) -> Membership:
    """The audit of one release of class means by a mechanism that claims epsilon 1."""
    canaries, exact, samples = sums()
    sizes = torch.tensor(samples).add(CANARIES // CLASSES / 2).unsqueeze(1)
    released = mechanism(exact, multiplier, seeded_bytes(seed))[:, 0] / LATTICE / sizes
    outside = Canaries.black_and_white(BLACK_AND_WHITE, 200, Key(7))
    population = Population.of(unit_features(outside.images), outside.labels, CLASSES)
    variance = multiplier**2 / float(sizes[0])
    return audit_release(canaries, unit_features, population, released, samples, extra_variance=variance, delta=DELTA)


@pytest.mark.parametrize("seed", range(5))
def test_class_means_with_the_right_noise_stay_below_their_epsilon(seed):
    found = audited(add_noise, SIGMA, seed)
    assert found.epsilon <= 1
    assert found.gaussian_epsilon <= 1


@pytest.mark.parametrize("seed", range(5))
def test_noise_drawn_anew_at_every_step_is_caught(seed):
    """The truth is epsilon 5.4; the Gaussian bound reads 2.1 to 2.8."""
    assert 1 < audited(noise_drawn_anew, SIGMA, seed).gaussian_epsilon < epsilon_of(DRAWS**0.5 / SIGMA, DELTA)


@pytest.mark.parametrize("seed", range(5))
def test_half_the_noise_cannot_be_seen_in_one_run(seed):
    """The truth is epsilon 2.15. One run says too little; many releases of the mechanism alone are needed."""
    assert audited(add_noise, SIGMA / 2, seed).epsilon < 1


NETWORKS, RELEASES = 3, 200_000


def threshold_bound(epsilon: float, mechanism: Mechanism = add_noise) -> float:
    """A lower bound on epsilon from releases of the mechanism alone with a budget of ``epsilon``, half of them with one
    canary in: an image whose features are as long as the clip allows under every network.

    The test adds up what a release says in the direction of the canary. It says "in" above a threshold, fixed
    beforehand. Its rates have Clopper-Pearson bounds of 97.5 % each, and there are two thresholds for 95 % together.
    """
    noise = 1 / mu_of(epsilon, DELTA)
    canary = torch.tensor([[0.6, -0.8]])
    ways = [
        class_sums([some] * NETWORKS, torch.zeros(len(some), dtype=torch.int64), 1) for some in (canary, canary[:0])
    ]
    source, n = seeded_bytes(0), RELEASES // 2
    seen = []
    for exact in ways:  # n releases of one class are one release of n classes: each has noise of its own
        released = mechanism(exact.repeat(n, 1, 1), noise, source)
        seen.append((released.double() / LATTICE @ canary[0].double()).sum(1) / NETWORKS**0.5)
    spread = noise * NETWORKS**0.5
    bounds = []
    for threshold in (3.0, 1.5):  # deviations of the claimed noise, and of half of it
        called = [int((scores > threshold * spread).sum()) for scores in seen]
        right = float(beta.ppf(0.0125, called[0], n - called[0] + 1)) if called[0] else 0.0
        wrong = float(beta.ppf(0.9875, called[1] + 1, n - called[1]))
        bounds.append(math.log(max(right - DELTA, 1e-300) / wrong))
    return max(bounds)


def half_the_noise(exact: Tensor, multiplier: float, source: ByteSource) -> Tensor:
    return add_noise(exact, multiplier / 2, source)


def noise_for_one_network(exact: Tensor, multiplier: float, source: ByteSource) -> Tensor:
    """The fault: as if one network's features were all that an image moves."""
    return add_noise(exact, multiplier / NETWORKS**0.5, source)


@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_many_releases_of_the_mechanism_alone_stay_below_their_epsilon_and_are_not_empty(epsilon):
    assert epsilon / 4 < threshold_bound(epsilon) <= epsilon


@pytest.mark.parametrize("fault", [half_the_noise, noise_for_one_network])
@pytest.mark.parametrize("epsilon", [1.0, 2.0])
def test_many_releases_of_the_mechanism_alone_see_too_little_noise(epsilon, fault):
    assert threshold_bound(epsilon, fault) > epsilon


def test_copies_of_one_half_are_found_and_independent_images_are_not():
    generator = Key(0).torch()
    real = torch.rand(2, 40, 1, 4, 4, generator=generator)
    labels = torch.arange(40) % 2
    copies = half_out((real[0] + 0.01, labels), (real[0], labels), (real[1], labels))
    assert (copies.images, copies.share, copies.neighbours) == (40, 1.0, 40)
    assert copies.p_value == pytest.approx(0.5**40)
    other = half_out(
        (torch.rand(400, 1, 4, 4, generator=generator), torch.arange(400) % 2), (real[0], labels), (real[1], labels)
    )
    assert 0.4 < other.share < 0.6
    assert other.p_value > 0.05


def test_the_halves_of_a_class_count_alike_although_one_is_larger():
    generator = Key(1).torch()
    used, unused, shared = (torch.rand(n, 8, generator=generator) for n in (300, 30, 400))
    parts = [(items, torch.zeros(len(items), dtype=torch.int64)) for items in (shared, used, unused)]
    assert 0.35 < half_out(*parts).share < 0.65


def test_a_copy_that_is_sent_often_counts_once_as_evidence():
    used, unused = torch.zeros(5, 2), torch.ones(5, 2)
    labels = torch.zeros(5, dtype=torch.int64)
    found = half_out((torch.zeros(50, 2), torch.zeros(50, dtype=torch.int64)), (used, labels), (unused, labels))
    assert (found.share, found.neighbours, found.p_value) == (1.0, 1, 0.5)
