import ot
import pytest
import torch
from torch import Tensor

from fedaf.condensation.matching import distribution_matching, sliced_wasserstein


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
