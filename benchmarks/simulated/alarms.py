"""Right models: how often the checks call one wrong.

Input: a family, the number of simulations and of rows. Output: how many are called wrong, and the p-values of every check. Data
come from the family itself, with five columns of different kinds; the posterior is drawn by weights around its mode, which takes
milliseconds.
"""

import numpy as np

from gyromc.regression.adequacy.assess import assess, cut, held_out_coverage
from gyromc.regression.adequacy.checks import ModelVerdict
from gyromc.regression.fit import fit
from gyromc.regression.problem import GroupTerm
from gyromc.targets.families import (
    Bernoulli,
    BetaBinomial,
    Categorical,
    Gamma,
    NegativeBinomial,
    Normal,
    Ordinal,
    Poisson,
    StudentT,
)
from simulated.quickdraws import quick_draws

__all__ = ["EVERY", "FAMILIES", "GROUPED", "alarms", "assessed", "columns", "responses"]

FAMILIES = {"linear": Normal(), "logistic": Bernoulli(), "softmax": Categorical(3), "poisson": Poisson()}
DISPERSED = {
    "student-t": StudentT(),
    "negative-binomial": NegativeBinomial(),
    "gamma": Gamma(),
    "ordinal": Ordinal(4),
    "beta-binomial": BetaBinomial(),
}
EVERY = FAMILIES | DISPERSED
TRIALS = 12.0
GROUPED, LEVELS = ("linear with groups", "poisson with groups"), 8


def columns(rng, n):
    """A normal, a skewed, a two-valued and a five-valued column, and one more normal."""
    X = rng.normal(size=(n, 5))
    X[:, 1], X[:, 2], X[:, 3] = rng.exponential(size=n), rng.integers(0, 2, n), rng.integers(0, 5, n)
    return X


def responses(family, X, rng):
    """Responses as the family has them."""
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    t = Z @ rng.normal(0, 0.5, X.shape[1])
    if family == "linear":
        return 3 + 2 * t + rng.normal(size=len(X))
    if family == "poisson":
        return rng.poisson(np.exp(0.7 + 0.7 * t)).astype(float)
    if family == "student-t":
        return 3 + 2 * t + rng.standard_t(4, size=len(X))
    if family == "negative-binomial":
        return rng.negative_binomial(2, 2 / (2 + np.exp(0.7 + 0.7 * t))).astype(float)
    if family == "gamma":
        return rng.gamma(2.0, np.exp(0.7 * t) / 2)
    if family == "ordinal":
        return np.digitize(t + rng.logistic(size=len(X)), [-1.0, 0.3, 1.5]).astype(float)
    p = 1 / (1 + np.exp(-t))
    if family == "beta-binomial":
        return rng.binomial(int(TRIALS), rng.beta(4 * p, 4 * (1 - p))).astype(float)
    if family == "logistic":
        return (rng.random(len(X)) < 1 / (1 + np.exp(-t))).astype(float)
    p = np.exp(Z @ rng.normal(0, 0.5, (X.shape[1], 3)))
    below = np.cumsum(p / p.sum(axis=1, keepdims=True), axis=1)
    return (rng.random((len(X), 1)) > below).sum(axis=1).astype(float)


def assessed(family, X, y, rng, groups=(), **options):
    """The checks of a model, with the coverage of its intervals on a quarter of the rows."""
    beside = {"trials": np.full(len(X), TRIALS)} if family == "beta-binomial" else {}
    beside |= {"groups": groups} if groups else {}
    test = np.arange(len(X)) % 4 == 0
    held_out = cut(beside, test)
    covered = held_out_coverage(
        _posterior(family, X[~test], y[~test], rng, cut(beside, ~test)), X[test], y[test], held_out
    )
    further = [] if covered is None else [covered]
    return assess(_posterior(family, X, y, rng, beside), X, y, further=further, beside=beside, **options)


def _posterior(family, X, y, rng, beside):
    if "groups" in beside:
        return fit(X, y, family, **beside, effort="quick", num_draws=1024, seed=int(rng.integers(2**31))).posterior
    return quick_draws(X, y, EVERY[family], rng, trials=beside.get("trials"))


def grouped(X, y, family, rng):
    """Groups of the rows, and responses with a deviation for each level."""
    index, b = rng.integers(0, LEVELS, len(X)), 0.7 * rng.normal(size=LEVELS)
    term = GroupTerm("g", ("intercept",), np.ones((len(X), 1)), index, tuple(map(str, range(LEVELS))))
    if family == "linear":
        return (term,), y + b[index]
    return (term,), rng.poisson(np.exp(0.7 + 0.3 * X[:, 0] + b[index])).astype(float)


def alarms(name, count, n):
    """How many of so many right models are called wrong, and all p-values by aspect; `name`: of `EVERY` or `GROUPED`."""
    wrong, p, family = 0, {}, name.removesuffix(" with groups")
    for seed in range(count):
        rng = np.random.default_rng([seed, n])
        X = columns(rng, n)
        y, groups = responses(family, X, rng), ()
        if name != family:
            groups, y = grouped(X, y, family, rng)
        found = assessed(family, X, y, rng, groups)
        wrong += found.judgement is ModelVerdict.MISFIT
        for check in found.checks:
            if check.p is not None:
                p.setdefault(check.aspect, []).append(check.p)
    return wrong, p
