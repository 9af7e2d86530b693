"""Standardised regressions: columns with mean 0 and standard deviation 1, the posterior as a target, and the way back.

A column of two values is scaled as if both were equally frequent, by half their distance: its standard deviation would be tiny
where one value is rare, and the prior of its coefficient almost flat. A constant column is not scaled.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from gyromc.regression.problem import GroupTerm, Problem, cut, settable
from gyromc.targets.families import Normal, NormalNoise
from gyromc.targets.mixed import LKJ, Group, MixedRegression
from gyromc.targets.priors import Prior

INTERCEPT_SCALE = 10.0  # prior standard deviation of the intercept, in standardised units


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """The map between the user's columns and responses and the standardised ones."""

    center: Float[np.ndarray, " columns"]
    scale: Float[np.ndarray, " columns"]
    y_center: float
    y_scale: float
    intercept: float  # the entry in its column that gives the intercept its own prior scale; 0 without an intercept
    location: Float[np.ndarray, " columns"] | None = None  # prior means of the coefficients, in the user's units

    def with_priors(self, priors: Mapping[str, Prior], names: Sequence[str], prior_scale: float) -> "Units":
        """The same with the priors of some coefficients: a column's scale is what gives its coefficient the prior asked for."""
        scale, location, intercept, y_center = self.scale.copy(), np.zeros(len(names)), self.intercept, self.y_center
        for j, name in enumerate(names):
            if name in priors:
                scale[j] = self.y_scale * prior_scale / priors[name]["scale"]
                location[j] = priors[name]["location"]
        if "intercept" in priors and intercept:
            intercept = priors["intercept"]["scale"] / (prior_scale * self.y_scale)
            y_center = priors["intercept"]["location"]
        moved = location if np.any(location) else None
        return dataclasses.replace(self, scale=scale, location=moved, intercept=intercept, y_center=y_center)

    def known(self, X: np.ndarray) -> np.ndarray | float:
        """The part of the linear predictors, in the user's units, that the priors' means make."""
        return self.y_center + (0.0 if self.location is None else (X - self.center) @ self.location)

    def rows(self, X: np.ndarray, ones: np.ndarray | float = 1.0) -> np.ndarray:
        """The rows of the target, the intercept's column first; `ones`: of rows that sum up others, what stands for 1."""
        Z = (X - ones * self.center) / self.scale
        if not self.intercept:
            return Z
        return np.concatenate([np.broadcast_to(self.intercept * ones, (len(Z), 1)), Z], axis=1)

    def coefficients(self, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(T, t₀) with coefficients Tθ + t₀: for each output the intercept, where there is one, then the columns."""
        one = np.diag(self.y_scale / self.scale)
        offset = np.zeros(len(self.scale)) if self.location is None else self.location
        if self.intercept:
            first = self.y_scale * np.concatenate([[self.intercept], -self.center / self.scale])
            one = np.vstack([first, np.pad(one, ((0, 0), (1, 0)))])
            offset = np.concatenate([[self.y_center - offset @ self.center], offset])
        return np.kron(basis, one), np.tile(offset, len(basis))


MOST_SORTED = 10_000_000  # numbers of X
GROUP_SCALE = 1.0  # prior mean of a group's standard deviation, per standard deviation of its column (and of y)


@dataclasses.dataclass(frozen=True, eq=False)
class Standardised:
    """The posterior in standardised coordinates; the target of a linear model without groups has noise 1, σ is integrated out."""

    target: MixedRegression
    units: Units
    count: float | None = None  # of the observations, where rows sum up more than they are long
    noise_prior: Prior | None = None  # of σ, where the user asks for one


def standardise(problem: Problem) -> Standardised:
    """Standardise a regression."""
    # With sorted rows sums over them, and so all draws, do not depend on the order in which these came. More would take seconds.
    if problem.X.size <= MOST_SORTED:
        order = np.lexsort((*problem.X.T, problem.y))
        by_row = {name: getattr(problem, name) for name in ("X", "y", "offset", "weights", "groups")}
        known = tuple(values[order] for values in problem.known)
        problem = dataclasses.replace(problem, known=known, **cut(by_row, order))
    X, y, likelihood, prior_scale = problem.X, problem.y, problem.likelihood, problem.prior_scale
    centred = problem.intercept or likelihood.cutpoints
    units = RowSums.of(X, y, problem.weights).units(prior_scale, problem.intercept, likelihood.measured, centred)
    units = units.with_priors(problem.priors, problem.names, prior_scale)
    rows, offset = units.rows(X), units.known(X) + (0.0 if problem.offset is None else problem.offset)
    if likelihood.measured:
        y, offset = (y - offset) / units.y_scale, 0.0
    offset = np.broadcast_to(offset, y.shape)
    priors = _priors(problem, units)
    if isinstance(likelihood, Normal) and not problem.groups and not any(name.isdigit() for name in priors):
        if problem.weights is None:
            return Standardised(MixedRegression(rows, y, likelihood, prior_scale), units, None, priors.get("sigma"))
        # Weighted rows are multiplied by the roots of their weights.
        root = np.sqrt(problem.weights)
        target = MixedRegression(rows * root[:, None], y * root, likelihood, prior_scale)
        return Standardised(target, units, float(problem.weights.sum()), priors.get("sigma"))
    if likelihood.vector:
        prior_scale = prior_scale / math.sqrt(2)  # so that the difference of two classes has the prior asked for
    groups = tuple(_group(term, problem, units) for term in problem.groups)
    beside = {"weights": problem.weights, "known": problem.known, "groups": groups, "priors": priors}
    likelihood = NormalNoise() if isinstance(likelihood, Normal) else likelihood
    return Standardised(MixedRegression(rows, y, likelihood, prior_scale, offset=offset, **beside), units)


def _priors(problem: Problem, units: Units) -> dict[str, Prior]:
    """The priors that a target takes: of coefficients that are not normal, by number, and of further parameters."""
    asked, found = problem.priors, {}
    columns = (["intercept"] if units.intercept else []) + list(problem.names)
    for j, name in enumerate(columns):
        if name in asked and asked[name].law != "normal":
            # The column's scale has made the prior's scale `prior_scale`, and its location 0.
            found[str(j)] = Prior(asked[name].law, (*asked[name].numbers[:-2], 0.0, problem.prior_scale))
    for one in settable(problem.likelihood, (), False, ()):
        if one in asked and one not in columns:
            measured = problem.likelihood.measured and one == "sigma"
            found[one] = asked[one].scaled(1 / units.y_scale) if measured else asked[one]
    return found


def _group(term: GroupTerm, problem: Problem, units: Units) -> Group:
    """A group with the priors of its standard deviations and correlations, those of the most particular name."""
    others = {name: prior for name, prior in problem.priors.items() if name not in problem.names}
    asked = lambda *names: next((others[name] for name in names if name in others), None)
    usual = GROUP_SCALE / RowSums.of(term.Z, problem.y, problem.weights).units(1.0, measured=False).scale
    priors = [asked(name, term.name, "sd") for name in term.names[: len(term.columns)]]
    own = [prior and prior.scaled(1 / units.y_scale) for prior in priors]
    scale = [mean if prior is None else prior.size for mean, prior in zip(usual, own, strict=True)]
    correlations = asked(f"cor({term.name})", "cor") or LKJ
    return Group(term.Z, term.index, len(term.levels), scale, priors=own, correlations=correlations)


@dataclasses.dataclass(frozen=True, eq=False)
class RowSums:
    """What a linear model has to know of some rows, which may come in parts."""

    # `R`: the rows of [1 X y], a row of weight w times √w; or, where more were added, the upper triangular matrix with the same
    # RᵀR, updated by QR factorisation, which squares no condition number as adding up XᵀX would.
    R: Float[np.ndarray, "rows width"]
    count: float  # of the rows, or the sum of their weights
    ends: Float[np.ndarray, "two columns"]  # the smallest and the largest entry of every column, and of y
    two: Bool[np.ndarray, " columns"]  # whether there are no others

    @classmethod
    def empty(cls, num_columns: int) -> "RowSums":
        width = num_columns + 1
        return cls(np.zeros((0, width + 1)), 0, np.zeros((0, width)), np.ones(width, bool))

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> "RowSums":
        """Some rows; a row of weight w counts as w rows."""
        if weights is not None:
            counted = weights > 0
            X, y, weights = X[counted], y[counted], weights[counted]
        rows = np.column_stack([np.ones(len(y)), X, y])
        ends, two = _ends(rows[:, 1:])
        if weights is None:
            return cls(rows, len(y), ends, two)
        return cls(rows * np.sqrt(weights)[:, None], float(weights.sum()), ends, two)

    def add(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> "RowSums":
        """With some more rows, weighted as in `of`."""
        more = RowSums.of(X, y, weights)
        R: Any = np.linalg.qr(np.concatenate([self.R, more.R]), mode="r")
        ends, two = _ends(np.concatenate([self.ends, more.ends]))
        return RowSums(R, self.count + more.count, ends, self.two & more.two & two)

    @property
    def two_values(self) -> np.ndarray:
        return self.two & (self.ends[0] < self.ends[1])

    def moments(self, centred: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Centre and standard deviation of every column, y the last; 0 for the centre where it is not to be taken away."""
        # In units of the largest entry, so that squares of huge entries do not overflow.
        ones, size = self.R[:, :1], np.maximum(np.abs(self.ends).max(axis=0), np.finfo(float).tiny)
        unit = self.R[:, 1:] / size
        center = ones[:, 0] @ unit / self.count if centred else np.zeros(len(size))
        unit -= ones * center
        return size * center, size * np.sqrt(np.einsum("ij,ij->j", unit, unit) / self.count)

    def units(
        self, prior_scale: float, intercept: bool = True, measured: bool = True, centred: bool | None = None
    ) -> Units:
        """The units in which columns, and y where it is measured, have mean 0 (with an intercept) and standard deviation 1."""
        center, sd = self.moments(intercept if centred is None else centred)
        # A column that never changes keeps its scale.
        scale = np.where(sd > 1e-10 * np.abs(self.ends).max(axis=0), sd, 1.0)
        y_center, y_scale = (center[-1], scale[-1]) if measured else (0.0, 1.0)
        scale = np.where(self.two_values, (self.ends[1] - self.ends[0]) / 2, scale)[:-1]
        return Units(center[:-1], scale, float(y_center), float(y_scale), intercept * INTERCEPT_SCALE / prior_scale)

    def standardised(self, prior_scale: float, intercept: bool) -> Standardised:
        units = self.units(prior_scale, intercept)
        rows = units.rows(self.R[:, 1:-1], self.R[:, :1])
        y = (self.R[:, -1] - self.R[:, 0] * units.y_center) / units.y_scale
        return Standardised(MixedRegression(rows, y, Normal(), prior_scale), units, float(self.count))


def _ends(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest entry of every column, and whether there are no others."""
    ends = np.stack([rows.min(axis=0), rows.max(axis=0)])
    return ends, np.all((rows == ends[0]) | (rows == ends[1]), axis=0)
