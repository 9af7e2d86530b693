"""Data as a model expects them before it has seen any: parameters drawn from their priors, responses from the likelihood.

Input: a `Problem`. Output: draws of its parameters in the form of a posterior, and responses at the rows of the problem.
"""

import dataclasses
from typing import Any

import numpy as np
from scipy import special

from gyromc.regression.conjugate import ENDS, log_prior
from gyromc.regression.draws import Draws, GroupDraws, Predictive
from gyromc.regression.problem import Problem
from gyromc.regression.standardised import standardise
from gyromc.targets.families import NormalNoise

__all__ = ["prior_draws", "prior_findings", "prior_responses"]

MOST_LOG = 30.0  # of an expected count: NumPy draws none beyond e^43
LEVELS = (np.arange(41) + 0.5) / 41  # of quantiles
COUNT = 40  # draws of a picture
GRID = 2000  # values of log σ


def prior_draws(problem: Problem, count: int, seed: int = 0) -> Draws:
    """So many independent draws of all parameters from their priors."""
    standard, rng, shape = standardise(problem), np.random.default_rng(seed), (1, count)
    target, units = standard.target, standard.units
    theta = rng.normal(0.0, float(target.prior_precision) ** -0.5, (*shape, target.num_coefficients))
    for j, prior in target.coefficient_priors.items():
        theta[..., j] = prior.draw(rng, shape)
    likelihood = target.likelihood
    if problem.family == "linear" and not isinstance(likelihood, NormalNoise):
        grid = np.linspace(*ENDS, GRID)
        chances = special.softmax(log_prior(grid, standard.noise_prior))
        given = (np.exp(rng.choice(grid, shape, p=chances)) * units.y_scale,)
    else:
        asked = {name: prior for name, prior in target.priors if not name.isdigit()}
        given = likelihood.in_units(likelihood.drawn(rng, shape, asked), units.y_scale)
    groups = []
    for term, group in zip(problem.groups, target.groups, strict=True):
        root, deviations = (units.y_scale * values for values in group.drawn(rng, shape))
        groups.append(GroupDraws(term.name, term.columns, term.levels, deviations, root))
    return Draws(likelihood, units, theta, given, tuple(groups))


def prior_responses(problem: Problem, count: int, seed: int = 0) -> np.ndarray:
    """Responses at the rows of a problem for so many draws from the prior: count × rows."""
    known = dict(zip(problem.likelihood.known, problem.known, strict=True))
    beside = {"offset": problem.offset, "groups": problem.groups, **known}
    law = Predictive.of(prior_draws(problem, count, seed), problem.X, count, **beside)
    law = dataclasses.replace(law, t=np.minimum(law.t, MOST_LOG)) if law.likelihood.discrete else law
    with np.errstate(over="ignore"):
        return law.replicate(np.random.default_rng([seed, 1]))


def prior_findings(problem: Problem, seed: int = 0) -> dict[str, Any]:
    """What a picture of the prior predictive law shows: quantiles of each draw and of the data, or shares of classes.

    `inside`: the share of the drawn values that lie in the range of the data.
    """
    drawn, y = prior_responses(problem, COUNT, seed), problem.y
    if problem.classes is not None:
        shares = lambda values: [float(np.mean(values == c)) for c in range(len(problem.classes or ()))]
        return {"classes": list(problem.classes), "observed": shares(y), "draws": [shares(row) for row in drawn]}
    quantiles = lambda values: [float(f"{x:.5g}") for x in np.quantile(np.nan_to_num(values, posinf=1e300), LEVELS)]
    inside = float(np.mean((drawn >= y.min()) & (drawn <= y.max())))
    return {"levels": LEVELS.tolist(), "observed": quantiles(y), "draws": [*map(quantiles, drawn)], "inside": inside}
