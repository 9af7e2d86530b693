"""Descents, metrics and chains: each against an exact answer."""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.errors import InvalidInput
from gyromc.solve.chains import (
    ChainSettings,
    DenseMetric,
    LangevinChains,
    LowRankMetric,
    descend_all,
    fitted_metric,
)


def quadratic(P, m):
    def evaluate(rows):
        away = rows - m
        return 0.5 * np.einsum("ni,ij,nj->n", away, P, away), away @ P

    return evaluate


def test_descents_end_in_the_bulk():
    rng = np.random.default_rng(0)
    P, m = np.diag(np.geomspace(1, 1e4, 12)), rng.normal(size=12)
    start = rng.uniform(-5, 5, size=(6, 12))
    evaluate, calls = quadratic(P, m), []
    _, potential, _ = descend_all(lambda rows: calls.append(1) or evaluate(rows), start)
    assert evaluate(start)[0].min() > 1e3
    assert np.all(potential < 10 * 12)
    assert len(calls) < 100


def test_a_descent_that_meets_infinity_stays_where_the_density_is():
    def evaluate(rows):
        inside = rows[:, 0] > 0
        x = np.where(inside, rows[:, 0], np.nan)
        return x - 3 * np.log(x), (1 - 3 / x)[:, None]

    theta, potential, _ = descend_all(evaluate, np.array([[0.01], [40.0], [-1.0]]))
    assert np.all(np.abs(theta[:2] - 3) < 3)
    assert theta[2] == -1
    assert potential[2] == np.inf


def test_a_metric_is_exact_on_a_gaussian_whatever_the_points():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(6, 6))
    P = A @ A.T + 0.1 * np.eye(6)
    theta = rng.uniform(-3, 1, size=(100_000, 6)) ** 3  # no draws of that law
    found = fitted_metric(theta, theta @ P, most_dense=10).covariance()
    assert np.abs(found @ P - np.eye(6)).max() < 0.05  # shrinkage by d/n, over the smallest eigenvalue


def test_a_metric_of_low_rank_finds_the_directions_that_are_not_round():
    rng = np.random.default_rng(2)
    d, wide = 120, np.ones(120)
    wide[:3] = 50.0
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    C = (turn * wide**2) @ turn.T
    theta = rng.normal(size=(3000, d)) @ ((turn * wide) @ turn.T)
    found = fitted_metric(theta, theta @ np.linalg.inv(C), most_dense=10, rank=8)
    assert isinstance(found, LowRankMetric)
    root = np.linalg.inv(found.push(np.eye(d)).T)
    values = np.linalg.eigvalsh(root @ C @ root.T)
    assert values.max() / values.min() < 50  # 2500 without
    rows = rng.normal(size=(2, d))
    assert np.allclose(found.push(rows) @ rows[0], rows @ found.pull(rows[:1])[0])


def log_density(t):
    """x = log G with G ~ Gamma(3), y ~ N(x, 0.5²): skew and dependent."""
    return 3 * t[0] - jnp.exp(t[0]) - 2 * (t[1] - t[0]) ** 2


def exact_draws(rng, count):
    x = np.log(rng.gamma(3.0, size=count))
    return np.column_stack([x, x + 0.5 * rng.normal(size=count)])


def test_a_round_keeps_the_law_exactly():
    """40,000 chains from exact draws, with a step so large that a third is refused: five moments stay, to 2 % of a variance."""
    rng, count = np.random.default_rng(3), 40_000
    chains = LangevinChains(gm.targets.LogDensity(log_density), 2, settings=ChainSettings(chains=count, steps=6))
    start = exact_draws(rng, count)
    chains.metric, chains.log_step = DenseMetric(np.eye(2) * 0.6), np.log(1.2)
    chains._place(start, *chains.evaluate(start))
    kept = chains.sample()
    assert 0.4 < kept.acceptance.mean() < 0.9
    fresh = exact_draws(np.random.default_rng(4), count)
    moments = lambda t: np.column_stack([t, t**2, t[:, 0] * t[:, 1], np.exp(t[:, 0])])
    late, wanted = moments(kept.theta[-1]), moments(fresh)
    error = np.sqrt((late.var(axis=0) + wanted.var(axis=0)) / count)
    z = (late.mean(axis=0) - wanted.mean(axis=0)) / error
    assert np.abs(z).max() < 4
    # the power: the standard error of the variance of x is a hundredth of it
    assert error[2] < 0.02 * np.var(fresh[:, 0])
    assert np.corrcoef(start[:, 0], kept.theta[-1][:, 0])[0, 1] < 0.9


def test_warm_up_finds_scale_and_place_of_a_badly_scaled_law():
    P = np.diag(np.geomspace(1e-4, 1e4, 8))
    chains = LangevinChains(gm.targets.Quadratic(P, np.full(8, 3.0)), 8)
    chains.begin(np.zeros(8))
    while not chains.settled:
        chains.warm_up()
    values = np.linalg.eigvalsh(np.sqrt(P) @ chains.metric.covariance() @ np.sqrt(P))
    assert values.min() > 0.5
    assert values.max() < 2
    assert 0.3 < chains.step_size < 2


def test_a_start_without_density_is_said():
    chains = LangevinChains(gm.targets.LogDensity(lambda t: jnp.where(t[0] > 100, -t[0], -jnp.inf)), 1)
    with pytest.raises(InvalidInput, match="Pass `start`"):
        chains.begin(np.zeros(1))
