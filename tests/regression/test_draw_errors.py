"""Monte Carlo errors of spreads and interval ends: stated errors against those of many repetitions."""

import numpy as np
import pytest
from scipy import stats

from gyromc.regression.draws import spread_errors
from gyromc.regression.fit import GroupTerm, fit

ENDS = (0.025, 0.975)


def chains(rng, repetitions, correlation):
    """Stationary autoregressive chains with standard normal law: repetitions × chains × draws."""
    noise = rng.normal(size=(60, repetitions, 32))
    x = np.empty_like(noise)
    x[0] = noise[0]
    for k in range(1, len(x)):
        x[k] = correlation * x[k - 1] + np.sqrt(1 - correlation**2) * noise[k]
    return x.transpose(1, 2, 0)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_errors_are_as_large_as_stated(correlation):
    """200 sets of 32 chains: the mean square of (found - exact)/stated is 1, within 5 of its standard errors √(2/200)."""
    draws = chains(np.random.default_rng(0), 200, correlation)
    columns = np.moveaxis(draws, 0, -1)  # chains × draws × repetitions
    found = [columns.std(axis=(0, 1)), *np.quantile(columns.reshape(-1, 200), ENDS, axis=0, method="hazen")]
    exact = [1.0, *stats.norm.ppf(ENDS)]
    for value, truth, error in zip(found, exact, spread_errors(columns, None, ENDS), strict=True):
        assert abs(np.mean(((value - truth) / error) ** 2) - 1) < 0.5


def test_a_fit_states_those_of_its_draws():
    """The weighted draws of the solver are more than those kept, and better: so are their errors."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 1))
    found = fit(X, rng.poisson(np.exp(1 + 0.5 * X[:, 0])), "poisson", effort="quick", num_draws=512)
    kept = spread_errors(found.posterior.coefficients(), None, ENDS)
    stated = np.array([(c.sd_error, c.low_error, c.high_error) for c in found.coefficients]).T
    assert np.all((stated > 0) & (stated < kept))
    exact = fit(X, X[:, 0] + rng.normal(size=60), "linear")
    assert exact["x0"].sd_error == exact["x0"].low_error == exact["sigma"].high_error == 0


@pytest.mark.slow
def test_a_fit_states_them():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 1))
    y = rng.poisson(np.exp(1 + 0.5 * X[:, 0]) * rng.gamma(2, 0.5, 60))
    found = [fit(X, y, "negative-binomial", effort="quick", num_draws=512, seed=seed) for seed in range(6)]
    ratios = []
    for name in ("x0", "shape"):
        for value, error in (("sd", "sd_error"), ("low", "low_error"), ("high", "high_error")):
            values = np.array([getattr(one[name], value) for one in found])
            stated = np.mean([getattr(one[name], error) for one in found])
            ratios.append(values.std(ddof=1) / stated)
    # Of six numbers at least three are nearly independent: χ of 15 degrees of freedom is below 1.6 in 99.9 % of cases, and one
    # of 5 below 2.1. Weights make draws better than these errors know.
    assert np.sqrt(np.mean(np.square(ratios))) < 1.6
    assert max(ratios) < 2.1


def test_draws_that_were_picked_from_few_have_larger_errors():
    """Of 3000 weighted draws of the variances 2¹⁵ are picked: errors of sigma are those of 3000 draws or more."""
    rng = np.random.default_rng(2)
    index = np.repeat(np.arange(8), 5)
    y = rng.normal(size=8)[index] + rng.normal(size=40)
    term = GroupTerm("who", ("intercept",), np.ones((40, 1)), index, tuple("abcdefgh"))
    sigma = fit(np.zeros((40, 0)), y, groups=[term], num_draws=2**15)["sigma"]
    assert sigma.std_error > 0.8 * sigma.sd / np.sqrt(3000)  # 64 groups of draws: 2 standard errors of an error
    assert sigma.sd_error > 0.8 * sigma.sd / np.sqrt(2 * 3000)
