"""Predictions of many rows at once against plain averages over the same draws in double precision."""

import numpy as np
import pytest

from gyromc.regression.draws import Draws, GroupDraws
from gyromc.regression.problem import GroupTerm
from gyromc.regression.standardised import RowSums, Units
from gyromc.targets.families import (
    Bernoulli,
    BetaBinomial,
    Binomial,
    Categorical,
    Gamma,
    NegativeBinomial,
    Normal,
    NormalNoise,
    Ordinal,
    Poisson,
    StudentT,
)

CHAINS, DRAWS, COLUMNS, ROWS = 8, 16, 3, 700


def posterior(likelihood, given=(), y=(0.0, 1.0), groups=()):
    rng = np.random.default_rng(0)
    units = RowSums.of(rng.standard_normal((50, COLUMNS)), np.zeros(50)).units(2.5, measured=False)
    units = Units(units.center, units.scale, *y, units.intercept)
    theta = 0.3 * rng.standard_normal((CHAINS, DRAWS, likelihood.outputs * (COLUMNS + 1)))
    drawn = tuple(value * np.exp(0.1 * rng.standard_normal((CHAINS, DRAWS))) for value in given)
    return Draws(likelihood, units, theta, drawn, groups)


def group_draws():
    rng = np.random.default_rng(1)
    root = np.broadcast_to(np.array([[0.5, 0.0], [0.2, 0.3]]), (CHAINS, DRAWS, 2, 2))
    return GroupDraws("g", ("intercept", "x"), ("a", "b"), 0.5 * rng.standard_normal((CHAINS, DRAWS, 2, 2)), root)


def group_term(X):
    return GroupTerm(
        "g", ("intercept", "x"), np.column_stack([np.ones(len(X)), X[:, 0]]), np.arange(len(X)) % 4, tuple("bacd")
    )


CASES = {
    "linear": (posterior(Normal(), (2.0,), (1e6, 3.0)), {}),
    "student-t": (posterior(StudentT(), (2.0, 5.0), (1e6, 3.0)), {"offset": np.linspace(-1, 1, ROWS)}),
    "logistic": (posterior(Bernoulli()), {"offset": np.linspace(-100, 100, ROWS)}),
    "poisson": (posterior(Poisson()), {}),
    "softmax": (posterior(Categorical(4)), {}),
    "ordinal": (posterior(Ordinal(3), (-0.5, 1.0)), {}),
    "negative-binomial": (posterior(NegativeBinomial(), (2.0,)), {}),
    "gamma": (posterior(Gamma(), (3.0,)), {}),
    "binomial": (posterior(Binomial()), {"trials": np.arange(ROWS) % 9 + 1.0}),
    "beta-binomial": (posterior(BetaBinomial(), (4.0,)), {"trials": np.arange(ROWS) % 9 + 1.0}),
    "poisson with groups": (posterior(Poisson(), groups=(group_draws(),)), {"groups": True}),
    "linear with groups": (posterior(NormalNoise(), (2.0,), (1e6, 3.0), groups=(group_draws(),)), {"groups": True}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_quick_averages_are_plain_averages(case, threads, monkeypatch):
    monkeypatch.setenv("GYROMC_THREADS", threads)
    monkeypatch.setattr("gyromc.regression.draws.AT_ONCE", 128 * 20)  # many parts
    draws, beside = CASES[case]
    X = np.random.default_rng(2).standard_normal((ROWS, COLUMNS))
    beside = {"groups": (group_term(X),)} if beside.get("groups") is True else beside
    t, given = draws.predictors(X, **beside)
    means = draws.likelihood.mean(t, *given)
    mean = means.mean(axis=(0, 1))
    error = means.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(CHAINS)
    spread, noise = means.std(axis=(0, 1)), np.sqrt(draws.likelihood.variance(means, *given).mean(axis=(0, 1)))
    found = draws.predict(X, **beside)
    if mean.ndim == 2:
        assert np.max(np.abs(found.mean.sum(axis=1) - 1)) < 1e-12
    scale = 1e-5 * np.hypot(spread, noise) + (
        2e-7 if mean.max() <= 1 else 0.0
    )  # probabilities near 1 have seven digits
    assert np.max(np.abs(found.mean - mean) / scale) < 1
    assert np.max(np.abs(found.std_error - error) / scale) < 1
    assert np.max(np.abs(found.sd - spread) / scale) < 2
    assert np.max(np.abs(found.noise**2 - noise**2) / scale) < 3 * max(1.0, noise.max())


def test_a_row_is_predicted_alike_alone_and_among_others():
    draws, _ = CASES["softmax"]
    X = np.random.default_rng(2).standard_normal((ROWS, COLUMNS))
    np.testing.assert_allclose(draws.predict(X[5:6]).mean, draws.predict(X).mean[5:6], rtol=1e-6)


def test_a_new_level_has_one_deviation_for_all_its_rows():
    draws = posterior(Poisson(), groups=(group_draws(),))
    X = np.zeros((3, COLUMNS))
    term = GroupTerm(
        "g", ("intercept", "x"), np.column_stack([np.ones(3), np.zeros(3)]), np.array([0, 1, 0]), ("new", "a")
    )
    t = draws.predictors(X, groups=(term,))[0]
    np.testing.assert_array_equal(t[..., 0], t[..., 2])
    assert t[..., 0].std() > t[..., 1].std() * 0.5
    own = draws.groups[0].deviations[:, :, 0, 0]  # of the level "a"
    np.testing.assert_allclose(t[..., 1], draws.theta @ draws.units.rows(X[:1])[0] + own)


EXTREME = {
    "poisson": (Poisson(), ()),
    "negative-binomial": (NegativeBinomial(), (2.0,)),
    "gamma": (Gamma(), (3.0,)),
    "logistic": (Bernoulli(), ()),
    "softmax": (Categorical(3), ()),
    "softmax, five classes": (Categorical(5), ()),
}


@pytest.mark.parametrize("case", EXTREME)
def test_linear_predictors_beyond_single_precision(case):
    """Far new rows: eᵗ overflows in single precision, and several classes are far above the first."""
    likelihood, given = EXTREME[case]
    rng = np.random.default_rng(0)
    units = Units(np.zeros(1), np.ones(1), 0.0, 1.0, 0.0)
    theta = 1 + 0.05 * rng.standard_normal((CHAINS, DRAWS, likelihood.outputs))
    draws = Draws(likelihood, units, theta, tuple(np.full((CHAINS, DRAWS), value) for value in given))
    X = np.array([[-150.0], [-50.0], [1.0], [45.0], [60.0], [100.0], [150.0]])
    t, known = draws.predictors(X)
    means = likelihood.mean(t, *known)
    found = draws.predict(X)
    for quick in (found.mean, found.std_error, found.sd, found.noise):
        assert np.isfinite(quick).all()
    scale = np.abs(means.mean(axis=(0, 1))) + means.std(axis=(0, 1)) + (1e-3 if means.max() <= 1 else 0.0)
    assert (
        np.max(np.abs(found.mean - means.mean(axis=(0, 1))) / scale) < 3e-4
    )  # t = 150 has an error of 10⁻⁵ in single precision
    assert np.max(np.abs(found.sd - means.std(axis=(0, 1))) / scale) < 3e-4
