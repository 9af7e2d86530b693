"""Simulation-based calibration: parameters drawn from the prior, data from the model, and where the truth lies in its posterior.

Input: a family, the number of simulations and a seed. Output: the posterior's distribution function at the truth, simulations ×
parameters. It is uniform, whatever the model, if and only if prior, likelihood and computation agree (Talts et al. 2018).
"""

import functools
from collections.abc import Callable

import numpy as np
from scipy import special, stats

from gyromc.regression.fit import fit
from gyromc.regression.marginal import LARGEST, SMALLEST, Integrated, Marginal
from gyromc.solve.expect import expect
from gyromc.targets.families import (
    Bernoulli,
    Beta,
    BetaBinomial,
    Binomial,
    Cloglog,
    ConwayMaxwellPoisson,
    Exponential,
    Gamma,
    HurdlePoisson,
    Lognormal,
    NegativeBinomial,
    NormalNoise,
    Ordinal,
    Poisson,
    Probit,
    StudentT,
    Weibull,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from gyromc.targets.mixed import Group, MixedRegression

__all__ = [
    "LIKELIHOODS",
    "STUDIES",
    "exact_mixed_places",
    "least_p_value",
    "linear_places",
    "mixed_linear_places",
    "solved_places",
]

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
    "binomial": Binomial(),
    "probit": Probit(),
    "cloglog": Cloglog(),
    "lognormal": Lognormal(),
    "beta": Beta(),
    "zero-inflated-poisson": ZeroInflatedPoisson(),
    "zero-inflated-negative-binomial": ZeroInflatedNegativeBinomial(),
    "hurdle-poisson": HurdlePoisson(),
    "conway-maxwell-poisson": ConwayMaxwellPoisson(),
    "exponential": Exponential(),
    "weibull": Weibull(),
}
KNOWN = {"trials": TRIALS, "censored": np.zeros(ROWS)}


def design(seed=0):
    x = np.random.default_rng(seed).standard_normal(ROWS)
    return np.column_stack([np.ones(ROWS), (x - x.mean()) / x.std()])


def simulated(likelihood, groups, rng):
    """(target, θ): a truth drawn from the prior, and a target with data drawn from it."""
    X, known = design(), tuple(KNOWN[name] for name in likelihood.known)
    X = X[:, 1:] if isinstance(likelihood, Ordinal) else X
    terms = (Group(X[:, :1], np.arange(ROWS) % LEVELS, LEVELS, [SCALE]),) if groups else ()
    empty = MixedRegression(X, np.ones(ROWS), likelihood, SCALE, known=known, groups=terms)
    theta = rng.standard_normal(empty.dim)
    theta[: X.shape[1]] *= SCALE
    t = X @ theta[: X.shape[1]]
    for group, b in zip(terms, empty.deviations(theta), strict=True):
        t = t + np.sum(group.Z * b[group.index], axis=1)
    y = likelihood.sample(rng, t, *known, *empty.given(theta))
    y = np.maximum(y, 1e-12) if isinstance(likelihood, Gamma | Lognormal | Exponential | Weibull) else y
    return MixedRegression(X, y, likelihood, SCALE, known=known, groups=terms), theta


def solved_places(likelihood, groups, simulations, seed):
    """The posterior's distribution function at the truth, for all parameters but the deviations: simulations × parameters."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(simulations):
        target, theta = simulated(likelihood, groups, rng)
        draws = expect(target, error=0.05, seed=int(rng.integers(2**31)), progress=False)
        kept = target.num_coefficients + len(likelihood.auxiliary) + groups
        below = draws.draws[..., :kept] < theta[:kept]
        found.append(np.tensordot(draws.weights, below, axes=((0, 1), (0, 1))))
    return np.array(found)


def linear_places(simulations, seed):
    rng, found, Z = np.random.default_rng(seed), [], design()[:12]
    grid = np.linspace(np.log(SMALLEST) - 4, np.log(LARGEST) + 3, 4000)
    prior = np.exp(-0.5 * (SMALLEST**2 * np.exp(-2 * grid) + np.exp(2 * grid) / LARGEST**2))
    for _ in range(simulations):
        sigma = np.exp(rng.choice(grid, p=prior / prior.sum()))
        theta = SCALE * rng.standard_normal(2)
        posterior = Integrated(Z, Z @ theta + sigma * rng.standard_normal(12), SCALE, np.eye(2))
        draws, noise = posterior.draws(rng, (999,))
        found.append([*np.mean(draws < theta, axis=0), np.mean(noise < sigma)])
    return np.array(found)


def mixed_linear_places(simulations, seed):
    rng, found = np.random.default_rng(seed), []
    for _ in range(simulations):
        target, theta = simulated(NormalNoise(), True, rng)
        draws = Marginal(target).sample(np.eye(2), 1024, seed=int(rng.integers(2**31)))
        found.append(np.mean(draws.theta[:, :4] < theta[:4], axis=0))
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
    """The smallest p-value of uniformity over parameters, corrected for their number (Bonferroni)."""
    return min(1.0, min(stats.kstest(column, "uniform").pvalue for column in places.T) * places.shape[1])


def exact_mixed_places(simulations, seed):
    """What `mixed_linear_places` has to find, for the same data, by quadrature over σ and the group's standard deviation.

    Given these y is Gaussian, with covariance σ²I + τ²G + SCALE² XXᵀ, G of rows in one level.
    """
    rng, found, X, size = np.random.default_rng(seed), [], design(), ROWS // LEVELS
    G = (np.arange(ROWS)[:, None] % LEVELS == np.arange(ROWS) % LEVELS).astype(float)
    u = np.linspace(-5, 5, 121)  # standard normal a priori
    edges = np.concatenate([[u[0]], (u[1:] + u[:-1]) / 2, [u[-1]]])
    a, b = np.meshgrid(u, u, indexing="ij")
    v, w = (-special.log_ndtr(-a.ravel())) ** 2, (-SCALE * special.log_ndtr(-b.ravel())) ** 2  # σ² and τ²
    shrink = w / (v + size * w)  # (σ²I + τ²G)⁻¹ = (I - shrink G)/σ²
    for _ in range(simulations):
        target, theta = simulated(NormalNoise(), True, rng)
        rng.integers(2**31)  # the seed of the sampler
        y = target.y
        inner = lambda A, B, G=G: np.multiply.outer(1 / v, A.T @ B) - np.multiply.outer(shrink / v, A.T @ G @ B)
        K, h = inner(X, X) + np.eye(2) / SCALE**2, inner(X, y)
        mean = np.linalg.solve(K, h[..., None])[..., 0]
        log_det = (ROWS - LEVELS) * np.log(v) + LEVELS * np.log(v + size * w) + np.linalg.slogdet(K)[1]
        logs = -0.5 * (log_det + inner(y, y) - np.sum(h * mean, axis=1) + a.ravel() ** 2 + b.ravel() ** 2)
        p = special.softmax(logs)
        sd = np.sqrt(np.einsum("bii->bi", np.linalg.inv(K)))
        below = [
            np.interp(x, edges, [0.0, *np.cumsum(p.reshape(a.shape).sum(axis=k))])
            for k, x in ((1, theta[2]), (0, theta[3]))
        ]
        found.append([*(p @ special.ndtr((theta[:2] - mean) / sd)), *below])
    return np.array(found)


def _studies() -> dict[str, tuple[Callable, int]]:
    """By family: a function of the number of simulations and the seed, and how many are made."""
    found: dict[str, tuple[Callable, int]] = {
        "linear": (linear_places, 1000),
        "linear with groups": (mixed_linear_places, 1000),
    }
    for family in ("logistic", "poisson", "softmax"):
        found[family] = functools.partial(chain_places, family), 150
    for family, likelihood in LIKELIHOODS.items():
        if likelihood.auxiliary:
            found[family] = functools.partial(solved_places, likelihood, False), 300
    for family, likelihood in LIKELIHOODS.items():
        found[f"{family} with groups"] = functools.partial(solved_places, likelihood, True), 300
    return found


STUDIES = _studies()
