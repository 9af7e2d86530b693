"""LOO and WAIC against exact leave-one-out densities and against ArviZ."""

import numpy as np
import pytest
from arviz_base import from_dict
from arviz_stats import loo as arviz_loo
from scipy import stats

from gyromc.regression import scores as module
from gyromc.regression.scores import loo, total, waic


def linear(outlier=0.0, n=60, d=4, draws=4000, seed=0):
    """log p(y_i | θ_s) of draws from the posterior of a linear model with unit noise, and the exact log densities left out."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = X @ np.ones(d) + rng.normal(size=n)
    X[0], y[0] = X[0] + outlier, y[0] + outlier
    K = X.T @ X + np.eye(d) / 9
    theta = np.linalg.solve(K, X.T @ y) + rng.normal(size=(draws, d)) @ np.linalg.inv(np.linalg.cholesky(K))
    exact = []
    for i in range(n):
        others = np.delete(X, i, 0)
        left = others.T @ others + np.eye(d) / 9
        mean = X[i] @ np.linalg.solve(left, others.T @ np.delete(y, i))
        exact.append(stats.norm.logpdf(y[i], mean, np.sqrt(1 + X[i] @ np.linalg.solve(left, X[i]))))
    return stats.norm.logpdf(y, theta @ X.T), np.array(exact)


def test_loo_is_the_exact_density_left_out():
    log_density, exact = linear()
    found = loo(log_density)
    assert np.abs(found.elpd_rows - exact).max() < 0.05
    assert found.elpd == pytest.approx(exact.sum(), abs=0.1)
    assert found.std_error == pytest.approx(np.sqrt(60) * exact.std(), rel=0.02)
    assert found.p_loo == pytest.approx(4, abs=1.5)
    assert found.looic == -2 * found.elpd
    assert found.influential.size == 0
    wide = waic(log_density)
    assert wide.elpd == pytest.approx(found.elpd, abs=0.3)
    assert wide.p_waic == pytest.approx(found.p_loo, abs=0.3)


def test_a_row_that_decides_is_named():
    found = loo(linear(outlier=25.0)[0])
    assert list(found.influential) == [0]
    assert found.pareto_k[0] > 0.7


def test_the_same_numbers_as_arviz():
    log_density = linear()[0][:1000]
    ours = loo(log_density)
    theirs = arviz_loo(
        from_dict({"posterior": {"a": np.zeros((4, 250))}, "log_likelihood": {"y": log_density.reshape(4, 250, -1)}}),
        reff=1.0,
        pointwise=True,
    )
    assert ours.elpd == pytest.approx(float(theirs.elpd), rel=1e-8)
    assert ours.std_error == pytest.approx(float(theirs.se), rel=1e-8)
    assert ours.p_loo == pytest.approx(float(theirs.p), rel=1e-6)
    np.testing.assert_allclose(ours.pareto_k, np.asarray(theirs.pareto_k), atol=1e-8)


def test_a_part_stands_for_all_rows_and_differences_are_paired():
    log_density = linear(n=400)[0]
    full, half = loo(log_density), loo(log_density[:, ::2], scale=2.0)
    assert half.elpd == pytest.approx(full.elpd, abs=3 * half.std_error)
    assert half.std_error == pytest.approx(np.sqrt(2) * full.std_error, rel=0.15)
    worse = loo(log_density - 0.1)
    difference, error = total(full.elpd_rows - worse.elpd_rows)
    assert difference == pytest.approx(40)
    assert error < 1e-6


def test_rows_in_parts_give_the_same(monkeypatch):
    log_density = stats.norm.logpdf(np.random.default_rng(3).normal(size=(200, 23)))
    whole = loo(log_density)
    monkeypatch.setattr(module, "AT_ONCE", 1000)  # five rows at a time
    parts = loo(log_density)
    for name in ("elpd_rows", "pareto_k", "log_weights"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
