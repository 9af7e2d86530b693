"""What the rows of a regression say of the deviations of its groups' levels, roughly: for coordinates, never for answers.

A row with the linear predictor t and the slope s and curvature w of its loss counts as a measurement t - s/w with variance 1/w
(penalised quasi-likelihood). The columns of the groups are taken in order: a level's effect is what its rows leave after the
coefficients and the deviations before, and its variance by chance contains the deviations that come after.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int

SWEEPS = 12  # in which effects and the variances between levels are found together
STEP = 1e-3  # of difference quotients in the linear predictors
LONGEST = 2.0  # step of a linear predictor in one sweep
LEAST = 1e-2  # curvature of a row in units of the mean one, and standard deviation between levels in units of its prior mean
MOST = 250_000  # entries of a matrix between levels: a quarter of those of the metric of 1000 parameters


class Evidence(eqx.Module):
    """Effects of a group's levels, `effects` - `before` x, and their variances by chance.

    x are the coefficients and the deviations of the groups before, as many as `before` has columns.
    """

    effects: Float[Array | np.ndarray, " levels"]
    variance: Float[Array | np.ndarray, " levels"]
    before: Float[Array | np.ndarray, "levels n"]

    def given(self, x: Any) -> Any:
        return self.effects - x[..., : self.before.shape[1]] @ self.before.T


class Part(NamedTuple):
    """A column of a group: the variance `between` its levels, at least `least`, and the posterior variances of the deviations."""

    group: int
    index: Int[np.ndarray, " rows"]
    z: Float[np.ndarray, " rows"]
    between: float
    least: float
    doubt: Float[np.ndarray, " levels"]

    def summed(self, rows: np.ndarray) -> np.ndarray:
        """Sums over the rows of every level."""
        return np.bincount(self.index, rows, len(self.doubt))


class RoughFit:
    """The rows as measurements at a rough mode, and what each column of each group varies between levels.

    - `target`: a regression with groups; `groups`: in the order in which they are taken, those with few levels first.
    """

    def __init__(self, target: Any, groups: Sequence[Any]):
        self.X, self.precision, likelihood = target.X, float(target.prior_precision), target.likelihood
        # Rows of weight zero, such as held-out ones, count as the others do: one program serves the fits with and without them.
        counted = target.weights > 0
        weights = np.where(counted, target.weights, target.weights.sum() / max(1, counted.sum()))
        given = *target.known, *likelihood.natural(np.zeros(len(likelihood.auxiliary)))
        loss = lambda t: weights * likelihood.loss(t + target.offset, target.y, *given)
        self.parts = [
            Part(i, group.index, z, (size / 2) ** 2, (LEAST * size) ** 2, np.zeros(group.num_levels))
            for i, group in enumerate(groups)
            for z, size in zip(group.Z.T, group.scale, strict=True)
        ]
        # rows that are in the same levels of all parts from one to another have the same number
        self.cells: dict[tuple[int, int], np.ndarray] = {}
        for first in range(len(self.parts)):
            cell = np.zeros(len(self.X), int)
            for last, part in enumerate(self.parts[first:], first):
                cell = np.unique(cell * len(part.doubt) + part.index, return_inverse=True)[1]
                self.cells[first, last] = cell
        t = float(np.ravel(likelihood.start(target.y))[0]) - target.offset
        for _ in range(SWEEPS):
            low, middle, high = (loss(t + h) for h in (-STEP, 0.0, STEP))
            curvature = (high - 2 * middle + low) / STEP**2
            # losses that are not convex have negative ones
            self.weights = np.maximum(curvature, LEAST * np.mean(np.abs(curvature)) + 1e-12)
            self.response = t - (high - low) / (2 * STEP) / self.weights
            t = t + np.clip(self._fitted() - t, -LONGEST, LONGEST)

    def _fitted(self) -> np.ndarray:
        """The linear predictors of a fit to the measurements; what varies between levels is updated."""
        p = self.X.shape[1]
        left = np.array([self._weighted(column, 0, 0) for column in self.X.T]).reshape(p, len(self.X))
        covariance = np.linalg.inv(left @ self.X + self.precision * np.eye(p))
        t = self.X @ (covariance @ (left @ self.response))
        for n, part in enumerate(self.parts):
            effects, variance, before = self._effects(n, t)
            share = part.between / (part.between + variance)
            # what is not known of coefficients and deviations before is not known of these either
            known = np.concatenate([np.zeros(0), *(other.doubt for other in self.parts[:n])])[: before.shape[1] - p]
            doubt = np.einsum("lp,pq,lq->l", before[:, :p], covariance, before[:, :p]) + before[:, p:] ** 2 @ known
            doubt = share * variance + share**2 * doubt
            between = max(part.least, float(np.mean((share * effects) ** 2 + doubt)))
            self.parts[n] = part._replace(between=between, doubt=doubt)
            t = t + part.z * (share * effects)[part.index]
        return t

    def _weighted(self, x: np.ndarray, n: int, first: int) -> np.ndarray:
        """x times the inverse covariance of the measurements with the deviations of the parts from n on, by Woodbury's identity.

        The deviation of a level counts as another one in each level of the parts from `first` on, in which it mostly is inside.
        """
        if n == len(self.parts):
            return self.weights * x
        part, cell = self.parts[n], self.cells[first, n]
        found, own = (self._weighted(y, n + 1, first) for y in (x, part.z))
        share = np.bincount(cell, part.z * found) / (1 / part.between + np.bincount(cell, part.z * own))
        return found - own * share[cell]

    def _effects(self, n: int, t: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The effects of a part's levels after linear predictors t, their variances by chance, and `Evidence.before`."""
        part = self.parts[n]
        pull = self._weighted(part.z, n + 1, n)
        information = np.maximum(part.summed(pull * part.z), 1e-6 / part.between)
        share = pull / information[part.index]
        before = [np.array([part.summed(share * column) for column in self.X.T]).reshape(-1, len(part.doubt)).T]
        for other in self.parts[:n]:
            before.append(np.zeros((len(part.doubt), len(other.doubt))))
            if sum(matrix.size for matrix in before) > MOST:
                before.pop()
                break
            np.add.at(before[-1], (part.index, other.index), share * other.z)
        return part.summed(share * (self.response - t)), 1 / information, np.concatenate(before, axis=1)

    def evidence(self, group: int) -> tuple[Evidence, float]:
        """Of a group's first column; and how much more the rows say of the median level than the levels' law does, at least."""
        own = [n for n, part in enumerate(self.parts) if part.group == group]
        found = [Evidence(*self._effects(n, 0.0)) for n in own]
        return found[0], min(
            float(np.median(self.parts[n].between / one.variance)) for n, one in zip(own, found, strict=True)
        )
