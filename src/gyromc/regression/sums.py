"""Rows of a linear regression, summed up: R with RᵀR = [1 X y]ᵀ[1 X y], which is all that the posterior depends on.

Rows as they come in; the same posed regression out as if they had come at once. R is updated by QR factorisation of (R; new
rows), which squares no condition number as adding up XᵀX would; its first row holds √N times the means, the rest what is left
when these are subtracted.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from gyromc.regression.conjugate import noise_scale
from gyromc.regression.posing import Posed, posterior
from gyromc.regression.units import INTERCEPT_SCALE, Units
from gyromc.targets.likelihoods import Normal

__all__ = ["RowSums"]


@dataclasses.dataclass(frozen=True, eq=False)
class RowSums:
    """What a linear model has to know of the rows so far.

    **Attributes:**

    - `R`: at most (p+2) × (p+2), upper triangular.
    - `count`: the number of rows, or the sum of their weights.
    - `ends`: the smallest and the largest entry of every column; `two`: whether a column has no others.
    """

    R: Float[np.ndarray, "rows width"]
    count: float
    ends: Float[np.ndarray, "two columns"]
    two: Bool[np.ndarray, " columns"]

    @classmethod
    def empty(cls, num_columns: int) -> "RowSums":
        """No rows yet."""
        return cls(np.zeros((0, num_columns + 2)), 0, np.zeros((0, num_columns)), np.ones(num_columns, bool))

    def add(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None) -> "RowSums":
        """With some more rows; a row of weight w counts as w rows."""
        rows = np.column_stack([np.ones(len(y)), X, y])
        if weights is not None:
            rows = rows * np.sqrt(weights)[:, None]
        R: Any = np.linalg.qr(np.concatenate([self.R, rows]), mode="r")
        entries = np.concatenate([self.ends, X])
        ends = np.stack([entries.min(axis=0), entries.max(axis=0)])
        only = np.all((entries == ends[0]) | (entries == ends[1]), axis=0)
        return RowSums(R, self.count + (len(y) if weights is None else float(weights.sum())), ends, self.two & only)

    def pose(self, prior_scale: float, intercept: bool) -> Posed:
        """The regression in standardised coordinates, and the way back to the user's."""
        ones, columns = self.R[:, :1], self.R[:, 1:]
        root = np.sqrt(self.count)
        center = columns[0] / self.R[0, 0] if intercept else np.zeros(columns.shape[1])
        left = columns - ones * center
        size, spread = np.linalg.norm(columns, axis=0) / root, np.linalg.norm(left, axis=0) / root
        scale = np.where(
            spread > 1e-10 * size, spread, 1.0
        )  # as in `Units.of`: a column that never changes keeps its prior
        two = self.two & (self.ends[0] < self.ends[1])
        scale[:-1] = np.where(two, (self.ends[1] - self.ends[0]) / 2, scale[:-1])
        units = Units(center[:-1], scale[:-1], center[-1], scale[-1], intercept * INTERCEPT_SCALE / prior_scale)
        rows, y = left[:, :-1] / scale[:-1], left[:, -1] / scale[-1]
        rows = np.concatenate([units.intercept * ones, rows], axis=1) if intercept else rows
        units = dataclasses.replace(units, noise=noise_scale(rows, y, prior_scale, self.count))
        return Posed(posterior(Normal(), rows / units.noise, y / units.noise, prior_scale), units, float(self.count))
