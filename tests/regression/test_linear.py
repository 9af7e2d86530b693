"""Linear regression with σ integrated out: against quadrature by another formula, and the coverage of intervals."""

import numpy as np
import pytest
from scipy import stats

from gyromc.regression.fit import fit
from gyromc.regression.marginal import LARGEST, SMALLEST, Integrated, mixture_moments
from gyromc.regression.standardised import RowSums
from simulated.coverage import coverage


def data(rows=12, columns=3, seed=0, sigma=1.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns))
    return X, 1 + X @ rng.standard_normal(columns) + sigma * rng.standard_normal(rows)


def exact(Z, y, prior_scale, T, points=3000):
    """Mean and covariance of Tθ and mean of σ: log σ on a grid, the evidence as the density of N(0, σ²I + s²ZZᵀ) at y."""
    n, p = Z.shape
    grid = np.linspace(-9, 4, points)
    log_w, means, covariances = [], [], []
    for sigma in np.exp(grid):
        S = sigma**2 * np.eye(n) + prior_scale**2 * Z @ Z.T
        prior = -0.5 * (SMALLEST**2 / sigma**2 + sigma**2 / LARGEST**2)
        log_w.append(-0.5 * (np.linalg.slogdet(S)[1] + y @ np.linalg.solve(S, y)) + prior)
        K = Z.T @ Z / sigma**2 + np.eye(p) / prior_scale**2
        means.append(T @ np.linalg.solve(K, Z.T @ y) / sigma**2)
        covariances.append(T @ np.linalg.solve(K, T.T))
    w = np.exp(np.array(log_w) - max(log_w))
    w /= w.sum()
    mean = w @ np.array(means)
    away = np.array(means) - mean
    return mean, np.tensordot(w, covariances, 1) + (w[:, None] * away).T @ away, w @ np.exp(grid)


@pytest.mark.parametrize(("rows", "columns"), [(12, 3), (5, 8)])
def test_against_another_formula(rows, columns):
    X, y = data(rows, columns)
    found = fit(X, y, num_draws=2**16)
    units = found.posterior.units
    Z, T = units.rows(X), units.coefficients(np.eye(1))[0]
    mean, covariance, sigma = exact(Z, (y - units.y_center) / units.y_scale, 2.5, T)
    sd = np.sqrt(np.diag(covariance))
    mean[0] += units.y_center
    np.testing.assert_allclose([c.mean for c in found.coefficients], mean, atol=1e-6 * sd.max())
    np.testing.assert_allclose([c.sd for c in found.coefficients], sd, rtol=1e-6)
    assert found["sigma"].mean == found.noise_scale == pytest.approx(units.y_scale * sigma, rel=1e-6)
    assert all(c.std_error == 0 and c.ess == np.inf for c in found.coefficients)
    draws = found.draws.reshape(-1, columns + 1)
    z = (draws.mean(axis=0) - mean) / (sd / np.sqrt(len(draws)))
    assert np.abs(z).max() < 4
    for c, column in zip(found.coefficients, draws.T, strict=True):
        for end, level in ((c.low, 0.025), (c.high, 0.975)):
            assert abs(np.mean(column < end) - level) < 4 * np.sqrt(0.025 * 0.975 / len(draws))
    assert abs(np.mean(found.posterior.given[0] < found["sigma"].high) - 0.975) < 4 * np.sqrt(
        0.025 * 0.975 / len(draws)
    )


def test_with_many_rows_the_intervals_are_those_of_least_squares():
    X, y = data(400, 3, sigma=2.0)
    found = fit(X, y, prior_scale=1e3)
    A = np.column_stack([np.ones(400), X])
    b, (left,) = np.linalg.lstsq(A, y, rcond=None)[:2]
    half = stats.t.ppf(0.975, 396) * np.sqrt(left / 396 * np.diag(np.linalg.inv(A.T @ A)))
    for c, m, h in zip(found.coefficients, b, half, strict=True):
        assert c.mean == pytest.approx(m, abs=1e-3 * h)
        assert (c.high - c.low) / 2 == pytest.approx(h, rel=1e-3)


def test_predictions_are_mixtures_over_sigma():
    """A new observation of twelve rows has the tails of Student's t: its density integrates to one and is wider than a normal."""
    X, y = data(12, 3)
    found = fit(X, y, num_draws=2**14)
    at = np.linspace(-30, 30, 2001)
    density = np.exp(found.posterior.log_densities(np.broadcast_to(X[:1], (2001, 3)), at))
    assert np.sum(density) * (at[1] - at[0]) == pytest.approx(1, abs=1e-3)
    prediction = found.predict(X[:1])
    sd = np.sqrt(np.sum(density * (at - prediction.mean) ** 2) * (at[1] - at[0]))
    assert sd == pytest.approx(prediction.predictive_sd[0], rel=0.02)
    kurtosis = np.sum(density * (at - prediction.mean) ** 4) * (at[1] - at[0]) / sd**4
    assert kurtosis > 3.3


def test_the_most_probable_noise():
    X, y = data(25, 4, seed=1)
    log_sigma, weights = Integrated(X, y, 2.0, np.eye(4)).grid
    found = np.exp(log_sigma[np.argmax(weights)])

    def evidence(sigma):
        S = sigma**2 * np.eye(25) + 4.0 * X @ X.T
        prior = -0.5 * (SMALLEST**2 / sigma**2 + sigma**2 / LARGEST**2)
        return -0.5 * (np.linalg.slogdet(S)[1] + y @ np.linalg.solve(S, y)) + prior

    assert evidence(found) > max(evidence(0.98 * found), evidence(1.02 * found))


def test_rows_summed_up_are_the_same_regression():
    X, y = data(40, 3, seed=2)
    X[:, 2] = X[:, 2] > 0.8
    sums = RowSums.empty(3)
    for first in range(0, 40, 8):
        sums = sums.add(X[first : first + 8], y[first : first + 8])
    standard = sums.standardised(2.5, True)
    direct = fit(X, y)
    np.testing.assert_allclose(standard.units.scale, direct.posterior.units.scale)
    assert standard.units.scale[2] == 0.5
    T = standard.units.coefficients(np.eye(1))[0]
    found = Integrated(standard.target.X, standard.target.y, 2.5, T, standard.count)
    np.testing.assert_allclose(mixture_moments(*found.mixture)[1], [c.sd for c in direct.coefficients], rtol=1e-6)


@pytest.mark.slow
def test_intervals_of_twelve_rows_cover():
    held = coverage(2000)
    assert 0.94 < held.mean() < 0.96
    assert np.all((held.mean(axis=0) > 0.93) & (held.mean(axis=0) < 0.97))


def test_intervals_of_twelve_rows_cover_in_few_simulations():
    """With σ held where the evidence is largest 150 simulations cover 85 to 90 %."""
    held = coverage(150, seed=1)
    by_fit = held.mean(axis=1)  # coefficients of one fit share σ
    assert abs(by_fit.mean() - 0.95) < 3 * by_fit.std() / np.sqrt(150)


def test_a_rare_level_keeps_its_prior():
    """One row has a level that no other has: its coefficient is not free to go anywhere."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal(200), np.arange(200) == 7])
    y = (rng.random(200) < 0.4).astype(float)
    y[7] = 0.0
    found = fit(X, y, "logistic", effort="quick")
    assert found.posterior.units.scale[1] == 0.5
    assert -12 < found["x1"].low < found["x1"].high < 6  # a prior of 2.5 for half a unit: N(0, 5²) for the level
