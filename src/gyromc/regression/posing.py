"""A regression posed for a sampler: columns and responses standardised, the posterior as a target, and the way back.

X and y in the user's units in; a `Posed` regression out. Rows of a linear model are divided by its noise, so that the target
has unit noise.
"""

import dataclasses
import math

import numpy as np

from gyromc.regression.conjugate import noise_scale
from gyromc.regression.units import Units
from gyromc.targets import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression
from gyromc.targets.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Poisson
from gyromc.targets.regressions import WithLikelihood

__all__ = ["Posed", "pose", "posterior"]


@dataclasses.dataclass(frozen=True, eq=False)
class Posed:
    """The posterior in standardised coordinates (`target`), and how these belong to the user's (`units`).

    The target of a linear model has its most probable noise; `count` is the number of observations where its rows sum up more
    than they are long.
    """

    target: WithLikelihood
    units: Units
    count: float | None = None


def pose(X: np.ndarray, y: np.ndarray, likelihood: Likelihood, prior_scale: float, intercept: bool) -> Posed:
    """Standardise a regression."""
    linear = isinstance(likelihood, Normal)
    units = Units.of(X, y if linear else None, prior_scale, intercept)
    rows = units.rows(X)
    if linear:
        y = (y - units.y_center) / units.y_scale
        units = dataclasses.replace(units, noise=noise_scale(rows, y, prior_scale))
        rows, y = rows / units.noise, y / units.noise
    if isinstance(likelihood, Categorical):
        prior_scale = prior_scale / math.sqrt(2)  # so that the difference of two classes has the prior asked for
    return Posed(posterior(likelihood, rows, y, prior_scale), units)


def posterior(likelihood: Likelihood, X: np.ndarray, y: np.ndarray, prior_scale: float) -> WithLikelihood:
    """The target of a likelihood with data and the prior N(0, prior_scale² I)."""
    if isinstance(likelihood, Categorical):
        return SoftmaxRegression(X, y, prior_scale, likelihood.num_classes)
    kinds = {Normal: LinearRegression, Bernoulli: LogisticRegression, Poisson: PoissonRegression}
    return kinds[type(likelihood)](X, y, prior_scale)
