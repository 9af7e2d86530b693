"""Families compared by leave-one-out cross-validation: differences against exact refits, the rule of choice, mixed laws."""

import numpy as np
import pytest
from scipy import stats

import gyromc as gm
from gyromc.regression.comparing import ComparedFamily, Comparison, compare
from gyromc.regression.fit import fit


def counts(spread, n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    rate = np.exp(1 + 0.5 * X[:, 0])
    return X, rng.poisson(rate * rng.gamma(1 / spread, spread, n) if spread else rate).astype(float)


@pytest.mark.parametrize(
    ("spread", "chosen"), [pytest.param(0.0, "poisson", marks=pytest.mark.slow), (1.0, "negative-binomial")]
)
def test_counts(spread, chosen):
    found = compare(*counts(spread), ["poisson", "negative-binomial"])
    assert found.chosen == chosen
    assert found.chosen in found.reason
    assert {one.family: one.elpd is not None for one in found.candidates} == {
        "poisson": True,
        "negative-binomial": True,
    }


def test_elpd_is_that_of_fits_without_each_row():
    """Each of 24 rows left out by a fit of its own; linear models are integrated, so the reference has no chain."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(24, 1))
    y = X[:, 0] + rng.normal(size=24)
    exact = 0.0
    for i in range(24):
        rest = np.arange(24) != i
        posterior = fit(X[rest], y[rest], num_draws=4096).posterior
        exact += posterior.log_densities(X[i : i + 1], y[i : i + 1])[0]
    found = compare(X, y, ["linear", "student-t"])
    linear = found.candidates[0]
    assert abs(linear.elpd - exact) < 0.5  # 512 draws, and a prior in units of the rows' own spread
    assert found.chosen == "linear"


def test_numbers_and_counts_by_probabilities():
    """Scores of 40 to 60 that are whole vary less than counts: a law of numbers is chosen, on the scale of probabilities."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(150, 1))
    y = np.round(50 + 2 * X[:, 0] + 1.5 * rng.normal(size=150))
    found = compare(X, y, ["poisson", "linear"])
    assert found.chosen == "linear"
    steps = compare(X, np.round(X[:, 0] + 10), ["linear"])  # noise of rounding alone: a density would be above 1
    assert steps.candidates[0].elpd < 0


def test_weights_are_copies_of_rows():
    """Without its weights the sum would be half as large; a pair left out at once costs a little more than one of it."""
    X, y = counts(0.0, n=60)
    twice = compare(np.repeat(X, 2, axis=0), np.repeat(y, 2), ["poisson"]).candidates[0]  # of the shape above
    weighted = compare(X, y, ["poisson"], weights=np.full(60, 2.0)).candidates[0]
    assert twice.elpd - 0.1 * abs(twice.elpd) < weighted.elpd < twice.elpd


@pytest.mark.slow
def test_differences_of_weighted_rows():
    X, y = counts(0.5, n=60)
    twice = compare(np.repeat(X, 2, axis=0), np.repeat(y, 2), ["poisson", "negative-binomial"])  # of the shape above
    weighted = compare(X, y, ["poisson", "negative-binomial"], weights=np.full(60, 2.0))
    a, b = (found.candidates[0].difference for found in (twice, weighted))
    assert a < 0
    assert b < 0
    assert 0.6 < a / b < 1.6  # a pair left out at once costs a little more than one of it


def test_the_simplest_unless_it_is_clearly_worse():
    def rule(difference, error):
        first = ComparedFamily("simple", -100.0, 5.0, 2.0, difference, error)
        return Comparison((first, ComparedFamily("rich", -100.0 - difference, 5.0, 3.0, 0.0, 0.0)), 50, 50).chosen

    assert rule(-3.9, 0.1) == "simple"
    assert rule(-4.1, 0.1) == "rich"
    assert rule(-10.0, 5.1) == "simple"
    assert rule(-10.0, 4.9) == "rich"


def test_one_extreme_row_does_not_hide_what_the_others_say():
    """Student-t noise: the farthest row makes difference and standard error about equal; without it the difference is clear."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(80, 1))
    y = X[:, 0] + rng.standard_t(4, 80)
    y[0] += 20
    found = compare(X, y, ["linear", "student-t"])
    linear = found.candidates[0]
    assert -linear.difference < 2 * linear.difference_std_error
    assert -linear.without_one[0] > 2 * linear.without_one[1]
    assert found.chosen == "student-t"
    assert "without one extreme row" in found.reason


def test_what_cannot_be_fitted_is_said():
    X, y = counts(0.0, n=40)
    found = compare(X, y - 1, ["poisson", "linear"])
    assert "counts (0, 1, 2" in found.candidates[0].refused
    assert found.chosen == "linear"
    assert "only family of 2" in found.reason
    with pytest.raises(gm.InvalidInput, match=r"No family could be fitted. poisson: .* negative-binomial: "):
        compare(X, y - 1, ["poisson", "negative-binomial"])
    with pytest.raises(gm.InvalidInput, match="name each family once"):
        compare(X, y, ["poisson", "poisson"])


@pytest.mark.slow
def test_successes_have_the_trials_of_their_rows():
    """The sum of log densities at the truth. With the trials of other rows, or the most for all, it is 14 or 11 errors away."""
    rng = np.random.default_rng(3)
    X, trials = rng.normal(size=(400, 1)), rng.integers(4, 12, 400)
    p = 1 / (1 + np.exp(-X[:, 0]))
    y = rng.binomial(trials, p)
    found = compare(X, y, ["binomial"], trials=trials).candidates[0]
    assert abs(found.elpd - stats.binom.logpmf(y, trials, p).sum()) < 0.3 * found.std_error


@pytest.mark.slow
def test_successes_among_trials():
    rng = np.random.default_rng(3)
    X, trials = rng.normal(size=(50, 1)), rng.integers(4, 12, 50)
    p = 1 / (1 + np.exp(-X[:, 0]))
    y = rng.binomial(trials, rng.beta(2 * p, 2 * (1 - p)))
    assert compare(X, y, ["binomial", "beta-binomial"], trials=trials).chosen == "beta-binomial"


def test_of_many_rows_some_are_taken(monkeypatch):
    monkeypatch.setattr("gyromc.regression.comparing.MOST_ROWS", 100)
    rng = np.random.default_rng(4)
    X = rng.normal(size=(400, 1))
    y = X[:, 0] + rng.normal(size=400)
    found = compare(X, y, ["linear"])
    assert (found.rows, found.of_rows) == (100, 400)
    full = stats.norm.logpdf(y, X[:, 0]).sum()
    assert abs(found.candidates[0].elpd - full) < 5 * found.candidates[0].std_error
