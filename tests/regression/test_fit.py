"""Fits against exact answers: conjugate formulas, quadrature, invariances; and what every error message says."""

import signal

import numpy as np
import pytest
from scipy import special

import gyromc as gm
from gyromc.approx.modes import GaussianApproximation, inverse_root
from gyromc.datasets import heart
from gyromc.regression import fit as fitting
from gyromc.regression.draws import moments
from gyromc.regression.fit import fit
from gyromc.regression.standardised import RowSums
from gyromc.targets.functions import contrasts


def data(rows=60, columns=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)) * [1.0, 1e6, 1e-6][:columns] + [0.0, 3e6, 1e-6][:columns]
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    return X, Z, rng


def quadrature(target, width=9.0, points=401):
    """E and sd of the two coordinates of θ on a grid around the mode."""
    center = gm.Model(target).laplace
    root = np.linalg.cholesky(np.linalg.inv(center.precision))
    axis = np.linspace(-width, width, points)
    theta = center.mean + np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2) @ root.T
    w = np.exp(-target.potentials(theta) + target.potentials(center.mean[None]))
    w /= w.sum()
    mean = w @ theta
    return mean, np.sqrt(w @ (theta - mean) ** 2), theta, w


def weighted(target, center, draws):
    """Draws around a Gaussian with importance weights, and the function of (T, t₀) that gives mean, sd and error of Tθ + t₀."""
    half = np.random.default_rng(0).standard_normal((draws // 2, target.dim))
    x = np.concatenate([half, -half])
    theta = center.mean + 1.05 * x @ inverse_root(center.precision).T
    log_w = 0.5 * np.sum(x**2, axis=1) - target.potentials(theta)
    w = np.exp(log_w - log_w.max())
    w /= w.sum()

    def moments(T, offset):
        values = theta @ T.T + offset
        away = values - w @ values
        return w @ values, np.sqrt(w @ away**2), np.sqrt(w**2 @ away**2)

    return moments, theta, w


HARD = {
    "logistic": ("logistic", [0, 0, 1, 0, 1, 1, 1, 1]),
    "separable": ("logistic", [0, 0, 0, 0, 1, 1, 1, 1]),
    "poisson": ("poisson", [0, 1, 0, 2, 1, 3, 7, 6]),
    "no counts": ("poisson", [0, 0, 0, 0, 0, 0, 0, 1]),
}


@pytest.mark.parametrize("name", HARD)
def test_skewed_posteriors_against_quadrature(name):
    """Eight rows: the posterior is far from Gaussian. The stated error, bias included, is the one asked for, and it holds."""
    model, y = HARD[name]
    x = np.arange(8.0)[:, None]
    found = fit(x, y, model, effort=0.005, num_draws=2**15)
    _, sd, theta, w = quadrature(found.target)
    T, offset = found.posterior.units.coefficients(np.eye(1))
    values = theta @ T.T + offset
    exact = w @ values
    sd = np.sqrt(w @ (values - exact) ** 2)
    for c, m, s in zip(found.coefficients, exact, sd, strict=True):
        assert c.std_error < 0.006 * s
        assert abs(c.mean - m) < 4 * c.std_error
        assert abs(c.sd / s - 1) < 0.02
    prediction = found.predict([[2.5]])
    row = found.posterior.units.rows(np.array([[2.5]]))
    rate = {"logistic": special.expit, "poisson": np.exp}[model](theta @ row[0])
    assert abs(prediction.mean[0] - w @ rate) < 4 * prediction.std_error[0] + 0.01 * np.sqrt(w @ (rate - w @ rate) ** 2)
    assert abs(prediction.sd[0] / np.sqrt(w @ (rate - w @ rate) ** 2) - 1) < 0.1  # 1900 draws of a skewed rate


def test_draws_come_in_groups_of_one_chain_each():
    X, Z, rng = data()
    y = (rng.random(60) < special.expit(Z[:, 0])).astype(float)
    found = fit(X, y, "logistic", effort=0.2, num_draws=2000, num_chains=16)
    assert found.draws.shape == (16, 125, 4)
    mean, error = moments(found.draws)[:2]
    assert np.all(np.abs(mean - [c.mean for c in found.coefficients]) < 4 * error)
    assert found.account is not None
    assert not found.partial
    assert str(found.account.chains) in found.reason
    assert list(found.refused) == ["closed form", "importance sample of the variances"]


def test_softmax_against_quadrature():
    """Three classes and one column without intercept: two parameters."""
    x = np.linspace(-1.5, 1.5, 9)[:, None]
    y = np.array([0, 0, 1, 0, 1, 1, 2, 1, 2])
    found = fit(x, y, "softmax", intercept=False, effort=0.005, num_draws=2**15, classes=["a", "b", "c"])
    _, _, theta, w = quadrature(found.target)
    T, _ = found.posterior.units.coefficients(contrasts(3))
    values = theta @ T.T
    for c, m, s in zip(found.coefficients, w @ values, np.sqrt(w @ (values - w @ values) ** 2), strict=True):
        assert c.std_error < 0.006 * s
        assert abs(c.mean - m) < 4 * c.std_error
        assert abs(c.sd / s - 1) < 0.02
    assert [c.output for c in found.coefficients] == ["a", "b", "c"]
    p = found.predict([[0.3]]).mean[0]
    exact = w @ special.softmax(values * 0.3, axis=1)
    assert np.allclose(p, exact, atol=0.005)
    assert abs(p.sum() - 1) < 1e-12


def test_softmax_of_two_classes_is_logistic():
    X, Z, rng = data(columns=2)
    y = (rng.random(60) < special.expit(Z[:, 0])).astype(float)
    one, two = (fit(X, y, family, effort=0.1) for family in ("softmax", "logistic"))
    np.testing.assert_allclose(one.predict(X[:5]).mean[:, 1], two.predict(X[:5]).mean, rtol=1e-5)
    assert [c.output for c in one.coefficients] == ["0"] * 3 + ["1"] * 3


def test_units_do_not_matter():
    """Columns times 10⁶ and shifted: the same draws, coefficients divided by 10⁶."""
    _, Z, rng = data(columns=2)
    y = (rng.random(60) < special.expit(Z[:, 0])).astype(float)
    one, two = (fit(A, y, "logistic", effort=0.1) for A in (Z, Z * [1e6, 1e-9] + [5.0, 7.0]))
    for a, b, factor in zip(one.coefficients[1:], two.coefficients[1:], [1e6, 1e-9], strict=True):
        assert np.isclose(a.mean, b.mean * factor, rtol=1e-3)
        assert np.isclose(a.sd, b.sd * factor, rtol=1e-3)
    assert np.allclose(one.predict(Z).mean, two.predict(Z * [1e6, 1e-9] + [5.0, 7.0]).mean, atol=1e-4)


def test_more_columns_than_rows():
    """What the rows do not show keeps its prior and is not sampled: 30 columns, of which 8 rows show 8 directions."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((8, 30))
    found = fit(X, [0, 1, 0, 1, 1, 0, 0, 1], "logistic", effort=0.05, num_draws=2**14)
    V = np.linalg.svd(found.target.X)[2][8:]  # directions without data
    along = found.posterior.theta @ V.T
    assert np.all(np.abs(along.mean(axis=(0, 1))) < 4 * 2.5 / np.sqrt(2**14))
    assert np.all(np.abs(along.std(axis=(0, 1)) / 2.5 - 1) < 4 / np.sqrt(2**15))
    assert all(c.sd < 2.5 / scale for c, scale in zip(found.coefficients[1:], X.std(axis=0), strict=True))


@pytest.mark.slow
def test_nearly_separable_classes_of_many_columns():
    """Importance sampling fails here, with a warning; steps are small, not absurd, and two seeds agree within stated errors."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 25)) @ rng.standard_normal((25, 25))
    y = (X[:, 0] + 0.1 * rng.standard_normal(60) > 0).astype(float)
    one, two = (fit(X, y, "logistic", effort=0.05, seed=seed) for seed in (0, 1))
    assert one.account.gradients < 1e7
    for a, b in zip(one.coefficients, two.coefficients, strict=True):
        assert a.std_error < 0.1 * a.sd
        assert abs(a.mean - b.mean) < 4 * np.hypot(a.std_error, b.std_error)
        assert abs(np.log(a.sd / b.sd)) < 0.2


@pytest.mark.parametrize(
    ("X", "y", "model"),
    [
        ([[1.0, 2.0]], [3.0], "linear"),
        ([[1.0, 5.0], [2.0, 5.0]], [0, 1], "logistic"),
        (np.column_stack([np.arange(6.0), np.arange(6.0), np.ones(6)]), [0, 1, 2, 0, 1, 2], "softmax"),
        (np.full((4, 1), 1e60), [1.0, 2.0, 3.0, 4.0], "linear"),
        (np.arange(5.0)[:, None], [7.0] * 5, "linear"),
        (np.arange(5.0)[:, None], [0] * 5, "poisson"),
    ],
    ids=["one row", "constant column", "repeated column", "huge", "constant response", "no counts"],
)
def test_poor_data_still_give_finite_answers(X, y, model):
    found = fit(X, y, model, effort=0.2)
    values = [v for c in found.coefficients for v in (c.mean, c.sd, c.std_error, c.low, c.high)]
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(found.predict(X).sd))


@pytest.mark.slow
def test_many_rows():
    """5000 rows, against importance sampling around the mode, where the posterior is nearly Gaussian."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((5000, 3))
    y = (rng.random(5000) < special.expit(X @ [1.0, -0.5, 0.0])).astype(float)
    found = fit(X, y, "logistic", effort=0.01, num_draws=2**14)
    T, offset = found.posterior.units.coefficients(np.eye(1))
    mean, sd, error = weighted(found.target, gm.Model(found.target).laplace, 20_000)[0](T, offset)
    for c, m, s, e in zip(found.coefficients, mean, sd, error, strict=True):
        assert c.std_error < 0.012 * s
        assert abs(c.mean - m) < 4 * np.hypot(c.std_error, e)
        assert abs(c.sd / s - 1) < 0.035


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"family": "tobit"}, "must be one of linear, student-t, gamma, lognormal"),
        ({"X": [[1.0], [np.nan]]}, "`X` must be finite"),
        ({"X": [1.0, 2.0]}, "matrix with one row per observation"),
        ({"y": [1.0]}, "one entry per row"),
        ({"family": "logistic", "y": [1, 1]}, "at least two classes: every row is 1"),
        ({"family": "logistic", "y": [1, 2]}, "must hold 0 or 1"),
        ({"family": "poisson", "y": [0.5, 1]}, "must hold counts"),
        ({"names": ["a", "b"]}, "one entry per column"),
        ({"level": 95}, "95 % is 0.95"),
        ({"effort": "huge"}, "`effort` is one of quick, standard, thorough"),
        ({"prior_scale": 0}, "`prior_scale` must be positive"),
        ({"classes": ["a", "b"]}, "`classes` is for"),
    ],
)
def test_bad_arguments(arguments, says):
    with pytest.raises(gm.InvalidInput, match=says):
        fit(**{"X": [[1.0], [2.0]], "y": [1.0, 2.0], **arguments})


def test_standardised_rows_and_back():
    X = np.array([[1.0, 10.0], [3.0, 10.0]])
    units = RowSums.of(X, np.array([0.0, 4.0])).units(2.5)
    assert np.allclose(units.rows(X), [[4.0, -1.0, 0.0], [4.0, 1.0, 0.0]])
    T, offset = units.coefficients(np.eye(1))
    theta = np.array([0.1, 0.7, 0.2])
    coefficients = T @ theta + offset
    direct = units.y_center + units.y_scale * (units.rows(X) @ theta)
    assert np.allclose(coefficients[0] + X @ coefficients[1:], direct)


def test_the_heart_data_against_importance_sampling():
    """Fourteen parameters: every coefficient and ten predictions, against 10⁵ draws around the nearest Gaussian, reweighted."""
    table = heart()
    X, y = table.predictors, table.disease
    found = fit(X, y, "logistic", prior_scale=1.0, effort=0.01, num_draws=2**14)
    target, shape = found.target, gm.Model(found.target).gaussian_fit
    moments, theta, w = weighted(target, GaussianApproximation(shape.mean, shape.precision, "the fit"), 100_000)
    assert 1 / np.sum(w**2) > 20_000
    mean, sd, error = moments(*found.posterior.units.coefficients(np.eye(1)))
    stated = np.array([c.std_error for c in found.coefficients])
    assert np.all(stated < 0.012 * sd)
    z = (np.array([c.mean for c in found.coefficients]) - mean) / np.hypot(stated, error)
    assert np.all(np.abs(z) < 4)
    assert np.mean(z**2) < 2.2  # 14 numbers: 3.2 standard errors above 1
    assert np.all(np.abs(np.array([c.sd for c in found.coefficients]) / sd - 1) < 0.03)
    p = special.expit(found.posterior.units.rows(X[:10]) @ theta.T)
    prediction = found.predict(X[:10])
    assert np.all(np.abs(prediction.mean - p @ w) < 4 * np.hypot(prediction.std_error, 0.01 * prediction.sd))
    middle = np.abs(prediction.mean - 0.5) < 0.4  # near 0 and 1 the spread has heavy tails and larger errors
    assert np.allclose(prediction.sd[middle], np.sqrt((p - (p @ w)[:, None]) ** 2 @ w)[middle], rtol=0.04)


def test_a_fit_knows_that_it_was_interrupted(sigint, monkeypatch):
    sigint(signal.default_int_handler)
    real = fitting.expect

    def pressed(*args, **options):
        found = real(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(fitting, "expect", pressed)
    X, _, rng = data()
    assert fit(X, rng.standard_normal(60) > 0, "logistic", effort=0.2).partial
