"""Simulation-based calibration: parameters drawn from the prior, data from the model, and where the truth lies in its posterior.

Over many simulations the posterior's distribution function at the truth is uniform, whatever the model, if and only if prior,
likelihood and computation agree (Talts et al. 2018).
"""

import numpy as np
import pytest
from scipy import stats

from gyromc.regression.conjugate import LARGEST, SMALLEST, integrate
from gyromc.regression.fit import fit
from gyromc.regression.marginal import Marginal
from gyromc.regression.nested import Nested
from gyromc.targets.families import BetaBinomial, Gamma, NegativeBinomial, NormalNoise, Ordinal, StudentT
from gyromc.targets.likelihoods import Bernoulli, Poisson
from gyromc.targets.mixed import Group, MixedRegression

ROWS, LEVELS, SCALE = 24, 6, 0.7
TRIALS = np.tile([3.0, 8.0, 12.0], ROWS // 3)
LIKELIHOODS = {
    "student-t": StudentT(),
    "logistic": Bernoulli(),
    "ordinal": Ordinal(3),
    "poisson": Poisson(),
    "negative-binomial": NegativeBinomial(),
    "gamma": Gamma(),
    "beta-binomial": BetaBinomial(),
}


def design(seed=0):
    x = np.random.default_rng(seed).standard_normal(ROWS)
    return np.column_stack([np.ones(ROWS), (x - x.mean()) / x.std()])


def simulated(likelihood, groups, rng):
    """(target, θ): a truth drawn from the prior, and a target with data drawn from it."""
    X, known = design(), (TRIALS,) if likelihood.known else ()
    X = X[:, 1:] if isinstance(likelihood, Ordinal) else X
    terms = (Group(X[:, :1], np.arange(ROWS) % LEVELS, LEVELS, [SCALE]),) if groups else ()
    empty = MixedRegression(X, np.ones(ROWS), likelihood, SCALE, known=known, groups=terms)
    theta = rng.standard_normal(empty.dim)
    theta[: X.shape[1]] *= SCALE
    t = X @ theta[: X.shape[1]]
    for group, b in zip(terms, empty.deviations(theta), strict=True):
        t = t + np.sum(group.Z * b[group.index], axis=1)
    y = likelihood.sample(rng, t, *known, *empty.given(theta))
    y = np.maximum(y, 1e-12) if isinstance(likelihood, Gamma) else y
    return MixedRegression(X, y, likelihood, SCALE, known=known, groups=terms), theta


def nested_places(likelihood, groups, simulations, seed):
    """The posterior's distribution function at the truth, for all parameters but the deviations: simulations × parameters."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(simulations):
        target, theta = simulated(likelihood, groups, rng)
        draws = Nested(target).sample(0.05, seed=int(rng.integers(2**31)))
        kept = target.num_coefficients + len(likelihood.auxiliary) + groups
        below = draws.theta[..., :kept] < theta[:kept]
        found.append(np.tensordot(draws.weights, below, axes=((0, 1), (0, 1))))
    return np.array(found)


def linear_places(simulations, seed):
    rng, found, Z = np.random.default_rng(seed), [], design()[:12]
    grid = np.linspace(np.log(SMALLEST) - 4, np.log(LARGEST) + 3, 4000)
    prior = np.exp(-0.5 * (SMALLEST**2 * np.exp(-2 * grid) + np.exp(2 * grid) / LARGEST**2))
    for _ in range(simulations):
        sigma = np.exp(rng.choice(grid, p=prior / prior.sum()))
        theta = SCALE * rng.standard_normal(2)
        posterior = integrate(Z, Z @ theta + sigma * rng.standard_normal(12), SCALE, np.eye(2))
        draws, noise = posterior.draws(rng, (999,))
        found.append([*np.mean(draws < theta, axis=0), np.mean(noise < sigma)])
    return np.array(found)


def mixed_linear_places(simulations, seed):
    rng, found = np.random.default_rng(seed), []
    for _ in range(simulations):
        target, theta = simulated(NormalNoise(), True, rng)
        draws = Marginal(target).sample(np.eye(2), 1024, seed=int(rng.integers(2**31)))
        found.append([*np.mean(draws.v[:, :2] < theta[:2], axis=0), *np.mean(draws.phi < theta[2:4], axis=0)])
    return np.array(found)


def chain_places(family, simulations, seed):
    """Families that are sampled by chains, through `fit`; the columns are standardised already."""
    rng, found, X = np.random.default_rng(seed), [], design()
    classes = 3 if family == "softmax" else 2
    for _ in range(simulations):
        if family == "softmax":
            W = SCALE / np.sqrt(2) * rng.standard_normal((classes, 2))
            W -= W.mean(axis=0)
            y, truth = np.argmax(X @ W.T + rng.gumbel(size=(ROWS, classes)), axis=1), W.ravel()
        else:
            truth = SCALE * rng.standard_normal(2)
            t = X @ truth
            y = rng.poisson(np.exp(t)) if family == "poisson" else rng.random(ROWS) < 1 / (1 + np.exp(-t))
        names = [str(c) for c in range(classes)] if family == "softmax" else None
        if family != "poisson" and len(np.unique(y)) < 2:
            continue  # refused; so rare with 24 rows that uniformity is not disturbed
        fitted = fit(
            X[:, 1:],
            y,
            family,
            classes=names,
            prior_scale=SCALE,
            priors={"intercept": SCALE},
            effort="quick",
            num_draws=1024,
        )
        found.append(np.mean(fitted.draws < truth, axis=(0, 1)))
    return np.array(found)


def least_p_value(places):
    """The smallest p-value of uniformity over parameters, for as many as there are."""
    return min(stats.kstest(column, "uniform").pvalue for column in places.T) * places.shape[1]


@pytest.mark.slow
@pytest.mark.parametrize("groups", [False, True], ids=["", "groups"])
@pytest.mark.parametrize("family", LIKELIHOODS)
def test_ranks_are_uniform(family, groups):
    if not groups and not LIKELIHOODS[family].auxiliary:
        pytest.skip("sampled by chains: below")
    assert least_p_value(nested_places(LIKELIHOODS[family], groups, 300, seed=1)) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("places", [linear_places, mixed_linear_places])
def test_ranks_of_linear_models_are_uniform(places):
    assert least_p_value(places(1000, seed=1)) > 0.01


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gyromc.GyromcWarning")
@pytest.mark.parametrize("family", ["logistic", "poisson", "softmax"])
def test_ranks_of_chains_are_uniform(family):
    assert least_p_value(chain_places(family, 150, seed=1)) > 0.01


@pytest.mark.parametrize("family", ["negative-binomial", "ordinal", "poisson"])
def test_ranks_are_uniform_in_few_simulations(family):
    groups = family == "poisson"
    places = nested_places(LIKELIHOODS[family], groups, 12, seed=2)
    assert stats.kstest(places.ravel(), "uniform").pvalue > 1e-3


def test_ranks_of_linear_models_are_uniform_in_few_simulations():
    assert least_p_value(linear_places(150, seed=2)) > 0.01
    assert least_p_value(mixed_linear_places(12, seed=2)) > 0.01
