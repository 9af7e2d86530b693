"""A regression posed for a sampler: columns and responses standardised, the posterior as a target, and the way back.

X and y in the user's units in; a `Posed` regression out. Rows of a linear model are divided by its noise, so that the target
has unit noise.
"""

import dataclasses
import math

import numpy as np

from gyromc.regression.conjugate import noise_scale
from gyromc.regression.reading import Problem
from gyromc.regression.terms import GroupTerm, Prior
from gyromc.regression.units import Units
from gyromc.targets import LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression
from gyromc.targets.families import NormalNoise, Ordinal, StudentT
from gyromc.targets.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Poisson
from gyromc.targets.mixed import Group, MixedRegression
from gyromc.targets.regressions import WithLikelihood

__all__ = ["Posed", "pose", "pose_problem", "posterior"]

GROUP_SCALE = 1.0  # prior mean of a group's standard deviation, per standard deviation of its column (and of y)


@dataclasses.dataclass(frozen=True, eq=False)
class Posed:
    """The posterior in standardised coordinates (`target`), and how these belong to the user's (`units`).

    The target of a linear model has its most probable noise; `count` is the number of observations where its rows sum up more
    than they are long.
    """

    target: WithLikelihood | MixedRegression
    units: Units
    count: float | None = None


def pose(X: np.ndarray, y: np.ndarray, likelihood: Likelihood, prior_scale: float, intercept: bool) -> Posed:
    """Standardise a regression of columns alone."""
    names = tuple(f"x{j}" for j in range(X.shape[1]))
    return pose_problem(Problem("", likelihood, X, y, names, None, intercept, prior_scale, {}))


def pose_problem(problem: Problem) -> Posed:
    """Standardise a regression.

    ```python
    import numpy as np
    from gyromc.regression.posing import pose
    from gyromc.targets.likelihoods import Poisson
    assert pose(np.arange(6.0)[:, None], np.arange(6.0), Poisson(), 2.5, True).target.dim == 2
    ```
    """
    X, y, likelihood, prior_scale = problem.X, problem.y, problem.likelihood, problem.prior_scale
    measured = isinstance(likelihood, Normal | StudentT)
    centred = problem.intercept or isinstance(likelihood, Ordinal)
    units = Units.of(X, y if measured else None, prior_scale, problem.intercept, centred)
    units = units.with_priors(problem.priors, problem.names, prior_scale)
    if isinstance(likelihood, Normal) and not problem.groups:
        return _linear(problem, units)
    if isinstance(likelihood, Categorical):
        prior_scale = prior_scale / math.sqrt(2)  # so that the difference of two classes has the prior asked for
    rows = units.rows(X)
    if problem.plain:
        return Posed(posterior(likelihood, rows, y, prior_scale), units)
    before = units.known(X) + (0.0 if problem.offset is None else problem.offset)
    if measured:
        y, before = (y - before) / units.y_scale, np.zeros(len(y))
    target = MixedRegression(
        rows,
        y,
        NormalNoise() if isinstance(likelihood, Normal) else likelihood,
        prior_scale,
        offset=np.broadcast_to(before, y.shape),
        weights=problem.weights,
        known=problem.known,
        groups=tuple(_group(term, problem.priors.get(term.name), units) for term in problem.groups),
    )
    return Posed(target, units)


def _linear(problem: Problem, units: Units) -> Posed:
    """Standardise a linear regression: weighted rows are multiplied by the roots of their weights."""
    before = units.known(problem.X) + (0.0 if problem.offset is None else problem.offset)
    rows, y, count = units.rows(problem.X), (problem.y - before) / units.y_scale, None
    if problem.weights is not None:
        root = np.sqrt(problem.weights)
        rows, y, count = rows * root[:, None], y * root, float(problem.weights.sum())
    units = dataclasses.replace(units, noise=noise_scale(rows, y, problem.prior_scale, count))
    target = posterior(Normal(), rows / units.noise, y / units.noise, problem.prior_scale)
    return Posed(target, units, count)


def _group(term: GroupTerm, prior: Prior | None, units: Units) -> Group:
    """A group with the prior means of its standard deviations."""
    spread = Units.of(term.Z, None, 1.0, True).scale
    scale = GROUP_SCALE / spread if prior is None else np.full(len(spread), prior.scale / units.y_scale)
    return Group(term.Z, term.index, len(term.levels), scale)


def posterior(likelihood: Likelihood, X: np.ndarray, y: np.ndarray, prior_scale: float) -> WithLikelihood:
    """The target of a likelihood with data and the prior N(0, prior_scale² I)."""
    if isinstance(likelihood, Categorical):
        return SoftmaxRegression(X, y, prior_scale, likelihood.num_classes)
    kinds = {Normal: LinearRegression, Bernoulli: LogisticRegression, Poisson: PoissonRegression}
    return kinds[type(likelihood)](X, y, prior_scale)
