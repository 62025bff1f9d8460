import math

import ot
import pytest
import torch
from torch import Tensor

from fedaf.condensation import matching
from fedaf.condensation.matching import (
    characteristic_distance,
    distribution_matching,
    sliced_wasserstein,
    spread_matching,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit_directions(count: int, dimension: int, seed: int = 0) -> Tensor:
    return torch.nn.functional.normalize(normal(count, dimension, seed=seed), dim=1)


def test_distribution_matching_and_its_image_gradient_have_their_closed_forms_on_linear_features() -> None:
    n, m, pixels, width = 7, 3, 5, 4
    linear, real, synthetic = normal(width, pixels), normal(n, pixels, seed=1), normal(m, pixels, seed=2)
    images = synthetic.clone().requires_grad_()
    loss = distribution_matching(real @ linear.T, images @ linear.T)
    (gradient,) = torch.autograd.grad(loss, images)
    gap = linear @ real.mean(0) - linear @ synthetic.mean(0)
    torch.testing.assert_close(loss.detach(), gap @ gap)
    torch.testing.assert_close(gradient, (-2 / m * linear.T @ gap).expand(m, pixels))


def test_distribution_matching_is_one_number_a_class() -> None:
    real, synthetic = normal(2, 6, 4), normal(2, 3, 4, seed=1)
    losses = distribution_matching(real, synthetic)
    assert losses.shape == (2,)
    for loss, r, s in zip(losses, real, synthetic, strict=True):
        torch.testing.assert_close(loss, distribution_matching(r, s))


def test_distribution_matching_compares_means_not_samples() -> None:
    real = torch.tensor([[1.0, 5.0], [3.0, 1.0]])
    assert distribution_matching(real, torch.tensor([[2.0, 3.0]])).item() == 0


@pytest.mark.parametrize(("n", "m"), [(6, 6), (4, 8), (5, 3), (7, 12), (1, 5), (1, 1)])
def test_sliced_wasserstein_agrees_with_pot(n: int, m: int) -> None:
    x, y, directions = normal(n, 4, seed=n), 2 * normal(m, 4, seed=100 + m) + 0.5, unit_directions(16, 4)
    theirs = ot.sliced_wasserstein_distance(x.numpy(), y.numpy(), p=2, projections=directions.T.numpy())
    assert sliced_wasserstein(x, y, directions).item() == pytest.approx(float(theirs), rel=1e-6)


def test_sliced_wasserstein_of_a_batch_is_that_of_each_pair() -> None:
    x, y, directions = normal(3, 5, 4), normal(3, 2, 4, seed=1), unit_directions(8, 4)
    together = sliced_wasserstein(x, y, directions)
    torch.testing.assert_close(together, torch.stack([sliced_wasserstein(x[i], y[i], directions) for i in range(3)]))


def test_sliced_wasserstein_does_not_depend_on_the_order_of_points() -> None:
    x, y, directions = normal(6, 3), normal(4, 3, seed=1), unit_directions(8, 3)
    torch.testing.assert_close(sliced_wasserstein(x, y, directions), sliced_wasserstein(x.flip(0), y, directions))


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_distance_of_single_points_is_their_euclidean_distance_over_the_root_of_the_dimension(classes: int) -> None:
    u, v = normal(1, classes), normal(1, classes, seed=1)
    torch.testing.assert_close(sliced_wasserstein(u, v), (u - v).norm() / classes**0.5)


def test_distance_of_single_points_agrees_with_monte_carlo_within_its_standard_error() -> None:
    classes, count = 10, 20_000
    u, v, directions = normal(1, classes), normal(1, classes, seed=1), unit_directions(count, classes, seed=2)
    squares = ((u - v) @ directions.T).square()
    standard_error = squares.std().item() / count**0.5
    exact, estimate = sliced_wasserstein(u, v).item() ** 2, sliced_wasserstein(u, v, directions).item() ** 2
    assert 0 < standard_error < 0.02 * exact
    assert abs(exact - estimate) < 4 * standard_error


def test_gradient_of_single_points_is_along_their_difference_and_of_constant_length() -> None:
    u, v = normal(1, 5).requires_grad_(), normal(1, 5, seed=1)
    (gradient,) = torch.autograd.grad(sliced_wasserstein(u, v), u)
    difference = (u - v).detach()
    torch.testing.assert_close(gradient, difference / difference.norm() / 5**0.5)


@pytest.mark.parametrize("directions", [None, unit_directions(8, 5).float()])
def test_gradient_at_equality_is_finite(directions: Tensor | None) -> None:
    point = normal(1, 5).float()
    u = point.clone().requires_grad_()
    loss = sliced_wasserstein(u, point, directions)
    (gradient,) = torch.autograd.grad(loss, u)
    assert loss.item() == pytest.approx(0, abs=1e-5)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(("n", "m"), [(2, 1), (1, 2), (3, 3)])
def test_sets_without_directions_are_an_error(n: int, m: int) -> None:
    with pytest.raises(ValueError, match="directions"):
        sliced_wasserstein(normal(n, 3), normal(m, 3))


def test_spread_matching_is_the_squared_distance_of_standard_deviations() -> None:
    real, synthetic = torch.tensor([[0.0, 1.0], [4.0, 1.0]]), torch.tensor([[5.0, 0.0], [5.0, 6.0]])
    assert spread_matching(real, synthetic).item() == pytest.approx(2**2 + 3**2, rel=1e-5)  # 2, 0 and 0, 3
    real, synthetic = normal(3, 7, 4), normal(3, 5, 4, seed=1)
    gap = (real - real.mean(1, keepdim=True)).square().mean(1).sqrt()
    gap = gap - (synthetic - synthetic.mean(1, keepdim=True)).square().mean(1).sqrt()
    torch.testing.assert_close(spread_matching(real, synthetic), gap.square().sum(-1), rtol=1e-8, atol=0)


def test_spread_matching_does_not_see_the_means() -> None:
    points = normal(6, 4)
    assert spread_matching(points, points + 100).item() == pytest.approx(0, abs=1e-12)


def test_the_gradient_of_the_spread_of_equal_images_is_finite() -> None:
    images = torch.ones(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(spread_matching(normal(5, 4).float(), images), images)
    assert gradient.isfinite().all()


def characteristic_by_hand(real: Tensor, synthetic: Tensor, directions: Tensor) -> float:
    """The mean of |phi - psi|^2 with complex numbers, one frequency and point at a time."""
    n, total = len(real), 0.0
    pairs = [(real[i] - real[j]).square().sum() for i in range(n) for j in range(n)]
    unit = math.sqrt(sum(float(square) for square in pairs) / n**2)  # the root mean square distance of two points
    for t in directions.T:
        phi, psi = (
            sum(complex(math.cos(a), math.sin(a)) for a in (3 * (points @ t) / unit).tolist()) / len(points)
            for points in (real, synthetic)
        )
        total += abs(phi - psi) ** 2
    return total / directions.shape[1] * (unit / 3) ** 2


def test_the_characteristic_distance_is_that_of_complex_exponentials() -> None:
    real, synthetic, directions = normal(7, 4), 1 + 2 * normal(3, 4, seed=1), normal(4, 20, seed=2)
    expected = characteristic_by_hand(real, synthetic, directions)
    assert characteristic_distance(real, synthetic, directions).item() == pytest.approx(expected, rel=1e-9)
    batch = characteristic_distance(real.expand(2, -1, -1), torch.stack([synthetic, synthetic + 1]), directions)
    assert batch.shape == (2,)
    assert batch[0].item() == pytest.approx(expected, rel=1e-9)
    assert batch[1].item() != pytest.approx(expected, rel=1e-2)


def test_the_characteristic_distance_of_single_points_is_one_minus_the_cosine_of_their_phase() -> None:
    """A single point has no spread, so the unit is the root of epsilon, 1e-6."""
    x, gap, directions = normal(1, 4), 1e-6 * normal(1, 4, seed=1), normal(4, 50, seed=2)
    expected = (2 - 2 * torch.cos(3e6 * gap @ directions)).mean() * (1e-6 / 3) ** 2
    found = characteristic_distance(x, x + gap, directions)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_the_characteristic_distance_of_equal_sets_is_zero() -> None:
    points, directions = normal(6, 4), normal(4, 20, seed=2)
    assert characteristic_distance(points, points.flip(0), directions).item() == pytest.approx(0, abs=1e-25)
    assert characteristic_distance(points, points.repeat(2, 1), directions).item() == pytest.approx(0, abs=1e-25)


def test_at_low_frequencies_the_characteristic_distance_is_the_squared_distance_of_the_means(monkeypatch) -> None:
    monkeypatch.setattr(matching, "_FREQUENCY", 1e-4)
    real, synthetic, directions = normal(20, 4), 2 * normal(9, 4, seed=1) + 0.5, normal(4, 40_000, seed=2)
    found = characteristic_distance(real, synthetic, directions).item()
    assert found == pytest.approx(distribution_matching(real, synthetic).item(), rel=0.03)


def test_a_small_shift_of_a_narrow_set_costs_its_square() -> None:
    """All real points but two opposite ones are at the centre, so that their characteristic function is close to 1."""
    ends = torch.zeros(2, 4, dtype=torch.float64)
    ends[:, 0] = torch.tensor([1.0, -1.0])
    real = torch.cat([ends, torch.zeros(998, 4, dtype=torch.float64)])
    shift = 1e-4 * normal(1, 4, seed=1)
    found = characteristic_distance(real, real + shift, normal(4, 40_000, seed=2)).item()
    assert found == pytest.approx(float(shift.square().sum()), rel=0.03)


def test_the_characteristic_distance_sees_the_shape_where_mean_and_spread_agree() -> None:
    two = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    three = torch.tensor([[-(1.5**0.5)], [0.0], [1.5**0.5]], dtype=torch.float64)
    assert distribution_matching(two, three).item() == pytest.approx(0, abs=1e-12)
    assert spread_matching(two, three).item() == pytest.approx(0, abs=1e-12)
    directions = normal(1, 500, seed=2)
    assert characteristic_distance(two, three, directions).item() > 0.01
    assert characteristic_distance(two, two, directions).item() == 0


@pytest.mark.parametrize("synthetic", [torch.ones(3, 4), torch.ones(3, 4) + 1e-7, 5 * normal(3, 4).float()])
def test_real_points_that_are_all_equal_give_finite_values_and_gradients(synthetic: Tensor) -> None:
    images = synthetic.clone().requires_grad_()
    loss = characteristic_distance(torch.ones(5, 4), images, normal(4, 20, seed=2).float())
    (gradient,) = torch.autograd.grad(loss, images)
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("distance", ["spread", "characteristic"])
def test_features_in_bf16_are_compared_in_float32(distance: str) -> None:
    real, synthetic = normal(200, 16).bfloat16(), (1 + normal(50, 16, seed=1)).bfloat16()
    more = (normal(16, 64, seed=2).float(),) if distance == "characteristic" else ()
    function = characteristic_distance if distance == "characteristic" else spread_matching
    found = function(real, synthetic, *more)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, function(real.float(), synthetic.float(), *more))


def test_a_small_shift_of_a_broad_set_costs_a_small_part_of_its_square() -> None:
    """The characteristic function of Gaussian points is about exp(-9/4 |t|^2 / D) there, and 1 for points at one spot.

    With D large, |t|^2 / D is about 1, so that the square of its modulus is exp(-9/2), and 1 / n more for n points.
    """
    dimension, count = 400, 2000
    real, directions = normal(count, dimension), normal(dimension, 4000, seed=2)
    shift = normal(1, dimension, seed=1)
    shift *= 0.01 / shift.norm()
    part = characteristic_distance(real, real + shift, directions).item() / float(shift.square().sum())
    assert part == pytest.approx(math.exp(-4.5), rel=0.15)
