"""The accountant agrees with an independent one, and its numbers are exact, monotone and inverse to each other."""

import math

import mpmath
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from fedaf.privacy.accountant import Budget, compose, delta_of, epsilon_of, expected_rho, mu_of
from fedaf.privacy.options import PrivacyOptions
from support.errors import raises

EPSILON = st.floats(0.01, 100)
DELTA = st.floats(-12, -1.5).map(lambda power: 10**power)
MU = st.floats(0.01, 20)


def exact_delta(epsilon: float, mu: float) -> mpmath.mpf:
    with mpmath.workdps(400):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("epsilon", "z"), [(1, 3.731), (4, 1.081), (8, 0.600)])
def test_the_noise_of_the_design(epsilon, z):
    assert Budget.of(PrivacyOptions(epsilon=epsilon)).z == pytest.approx(z, abs=5e-4)


@pytest.mark.parametrize("releases", [1, 20, 200])
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_a_privacy_loss_distribution_agrees_to_four_digits(releases, epsilon):
    budget = Budget.of(PrivacyOptions(epsilon=epsilon, releases=releases))
    one = pld.from_gaussian_mechanism(1 / budget.release_mu, value_discretization_interval=1e-4)
    together = one.self_compose(releases)
    assert together.get_delta_for_epsilon(epsilon) == pytest.approx(1e-5, rel=5e-4)
    assert together.get_epsilon_for_delta(1e-5) == pytest.approx(epsilon, rel=1e-4)
    assert together.get_delta_for_epsilon(epsilon / 2) == pytest.approx(delta_of(epsilon / 2, budget.mu), rel=5e-4)


@pytest.mark.parametrize("epsilon", [0.0, 1e-3, 0.5, 1.0, 10.0, 50.0, 100.0])
@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.3, 0.999, 1.0, 1.001, 3.0, 9.0, 30.0])
def test_delta_is_exact_to_twelve_digits(epsilon, mu):
    exact = exact_delta(epsilon, mu)
    found = delta_of(epsilon, mu)
    assert found == 0 if exact < 1e-310 else abs(found / exact - 1) < 1e-12


@given(EPSILON, MU, st.floats(1.0001, 3))
def test_delta_falls_with_epsilon_and_rises_with_mu(epsilon, mu, factor):
    delta = delta_of(epsilon, mu)
    assert 0 <= delta <= 1
    assert delta_of(epsilon * factor, mu) <= delta <= delta_of(epsilon, mu * factor)
    if 1e-300 < delta < 0.99:
        assert delta_of(epsilon * factor, mu) < delta < delta_of(epsilon, mu * factor)


@given(EPSILON, DELTA)
def test_mu_and_epsilon_are_inverse_and_never_promise_too_much(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) <= delta < delta_of(epsilon, mu * (1 + 1e-10))
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-10, abs=1e-10)
    assert delta_of(epsilon_of(mu, delta), mu) <= delta


@given(st.lists(MU, min_size=1, max_size=8), MU, DELTA)
def test_squares_of_mu_add_and_more_releases_never_cost_less(mus, more, delta):
    assert compose(*mus) ** 2 == pytest.approx(sum(mu**2 for mu in mus))
    assert compose(compose(*mus), more) == pytest.approx(compose(*mus, more))
    assert epsilon_of(compose(*mus, more), delta) >= epsilon_of(compose(*mus), delta)


def test_the_ends_of_the_range():
    assert compose() == epsilon_of(0.0, 1e-5) == delta_of(1.0, 0.0) == delta_of(5.0, 1e-320) == 0
    assert epsilon_of(1e-6, 1e-5) == 0  # so little is released that delta alone covers it
    assert delta_of(0.0, 1e200) == 1
    assert epsilon_of(1e200, 1e-5) == math.inf
    for wrong in (lambda: delta_of(-1.0, 1.0), lambda: delta_of(1.0, math.nan), lambda: epsilon_of(1.0, 0.0)):
        with pytest.raises(ValueError, match="expected"):
            wrong()
    with pytest.raises(ValueError, match="epsilon is 0"):
        mu_of(0, 1e-5)


@given(EPSILON, st.integers(1, 50), st.floats(0.01, 0.4), st.floats(0, 0.4))
def test_the_parts_of_all_releases_cost_the_whole_budget(epsilon, releases, counts, knowledge):
    options = PrivacyOptions(epsilon=epsilon, releases=releases, count_share=counts, knowledge_share=knowledge)
    budget = Budget.of(options)
    parts = [budget.sums_noise, budget.counts_noise, *([budget.knowledge_noise] if knowledge else [])]
    each = compose(*(1 / noise for noise in parts))
    assert compose(*[each] * releases) == pytest.approx(budget.mu)
    assert each == pytest.approx(budget.release_mu)
    assert budget.counts_noise == pytest.approx(1 / (math.sqrt(counts) * budget.release_mu))
    assert (budget.knowledge_noise is None) == (knowledge == 0)
    assert epsilon_of(budget.mu, options.delta) == pytest.approx(epsilon)


def test_replacing_an_image_costs_more_than_removing_one():
    budget = Budget.of(PrivacyOptions(epsilon=4.0))
    assert exact_delta(budget.replace_one_epsilon, 2 * budget.mu) == pytest.approx(1e-5)
    assert budget.replace_one_epsilon > 2 * budget.epsilon


def test_without_an_epsilon_there_is_no_budget():
    with raises("FEDAF-PRIVACY-OFF"):
        Budget.of(PrivacyOptions())


def test_rho_in_closed_form():
    assert expected_rho(2.0, 100, 400, 0.5) == pytest.approx(0.8)
    assert expected_rho(2.0, 200, 100, 0.5) == pytest.approx(0.2)
