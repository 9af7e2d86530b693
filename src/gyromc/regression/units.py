"""Standardised columns, and coefficients in the user's units.

Input: X and y in the user's units. Output: rows with mean 0 and standard deviation 1 and an intercept column, so that one
prior scale fits every coefficient; and the affine map from θ to coefficients in the user's units. A column of two values is
scaled as if both were equally frequent, by half their distance: its standard deviation would be tiny where one value is rare,
and the prior of its coefficient almost flat. A constant column is not scaled: its coefficient keeps its prior.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from gyromc.regression.terms import Prior

__all__ = ["INTERCEPT_SCALE", "Units"]

INTERCEPT_SCALE = 10.0  # prior standard deviation of the intercept, in standardised units


@dataclasses.dataclass(frozen=True, eq=False)
class Units:
    """The map between the user's columns and responses and the standardised ones.

    **Attributes:**

    - `center`, `scale`: of the columns; `y_center`, `y_scale`: of the response.
    - `intercept`: the entry in the intercept's column that gives the intercept its own prior scale; 0 without an intercept.
    - `noise`: the most probable σ of a linear model, in units of `y_scale`; 1 for the others.
    - `location`: prior means of the coefficients, in the user's units.
    """

    center: Float[np.ndarray, " columns"]
    scale: Float[np.ndarray, " columns"]
    y_center: float
    y_scale: float
    intercept: float
    noise: float = 1.0
    location: Float[np.ndarray, " columns"] | None = None

    @classmethod
    def of(
        cls, X: np.ndarray, y: np.ndarray | None, prior_scale: float, intercept: bool, centred: bool | None = None
    ) -> "Units":
        """The units in which columns have mean 0 (with an intercept) and standard deviation 1, and so has y where it is given."""
        center, scale = _standard(X, intercept if centred is None else centred)
        scale = np.where(two_values(X), (X.max(axis=0) - X.min(axis=0)) / 2, scale)
        y_center, y_scale = (np.zeros(1), np.ones(1)) if y is None else _standard(y[:, None], intercept)
        return cls(center, scale, float(y_center[0]), float(y_scale[0]), intercept * INTERCEPT_SCALE / prior_scale)

    def with_priors(self, priors: Mapping[str, Prior], names: Sequence[str], prior_scale: float) -> "Units":
        """The same with the priors of some coefficients: a column's scale is what gives its coefficient the prior asked for."""
        scale, location, intercept, y_center = self.scale.copy(), np.zeros(len(names)), self.intercept, self.y_center
        for j, name in enumerate(names):
            if name in priors:
                scale[j], location[j] = self.y_scale * prior_scale / priors[name].scale, priors[name].location
        if "intercept" in priors and intercept:
            intercept = priors["intercept"].scale / (prior_scale * self.y_scale)
            y_center = priors["intercept"].location
        moved = location if np.any(location) else None
        return dataclasses.replace(self, scale=scale, location=moved, intercept=intercept, y_center=y_center)

    def known(self, X: np.ndarray) -> np.ndarray | float:
        """The part of the linear predictors, in the user's units, that the priors' means make."""
        return self.y_center + (0.0 if self.location is None else (X - self.center) @ self.location)

    def rows(self, X: np.ndarray) -> np.ndarray:
        """Standardised rows, the intercept's column first."""
        Z = (X - self.center) / self.scale
        if not self.intercept:
            return Z
        return np.concatenate([np.full((len(Z), 1), self.intercept), Z], axis=1)

    def coefficients(self, basis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(T, t₀) with coefficients Tθ + t₀: for each output the intercept, where there is one, then the columns."""
        p = len(self.scale)
        one = np.diag(self.y_scale / self.scale)
        offset = np.zeros(p) if self.location is None else self.location
        if self.intercept:
            one = np.block([[np.zeros((1, 1)), np.zeros((1, p))], [np.zeros((p, 1)), one]])
            one[0] = np.concatenate([[self.y_scale * self.intercept], -self.y_scale * self.center / self.scale])
            offset = np.concatenate([[self.y_center - offset @ self.center], offset])
        return np.kron(basis, one), np.tile(offset, len(basis))


def two_values(columns: np.ndarray) -> np.ndarray:
    """Which columns take exactly two values."""
    low, high = columns.min(axis=0), columns.max(axis=0)
    return (low < high) & np.all((columns == low) | (columns == high), axis=0)


def _standard(columns: np.ndarray, centred: bool) -> tuple[np.ndarray, np.ndarray]:
    """Centre and scale of each column; 1 for the scale of one that never changes."""
    size = np.maximum(
        np.abs(columns).max(axis=0), np.finfo(float).tiny
    )  # so that squares of huge entries do not overflow
    unit = columns / size
    center = unit.mean(axis=0) if centred else np.zeros(columns.shape[1])
    spread = np.sqrt(np.mean((unit - center) ** 2, axis=0))
    return size * center, np.where(spread > 1e-10, size * spread, 1.0)
