"""Standardised residuals of a model, and tests of whether further columns would explain some of them.

A `Predictive` and the observed y in; for each candidate column the score test of adding it out. ModelResiduals are taken at the
posterior mean. Directions in which the model was fitted are removed from the candidates: they are read from the draws, because
the posterior covariance of the means, in units of the noise, is the hat matrix H of the fit. What is left of a candidate, Z⊥, has
Z⊥ᵀr ~ N(0, Z⊥ᵀZ⊥) in large samples; replicated responses correct the law of the test in small ones.
"""

import dataclasses
import functools

import numpy as np
from scipy import linalg, special

from gyromc.regression.predictive import Predictive, ResponseKind

__all__ = ["ModelResiduals", "chance", "residuals"]

FITTED = 0.05  # share of a direction's noise that the fit follows, from which the direction is taken as fitted
LEAST_LEFT = 1e-4  # share of a candidate's square that must be left when fitted directions are removed


@dataclasses.dataclass(frozen=True, eq=False)
class ModelResiduals:
    """ModelResiduals of one output of a model.

    **Attributes:**

    - `values`: (y - E[y])/sd at the posterior mean, n rows.
    - `fitted`: E[y], n rows.
    - `replicates`: residuals of replicated responses at their own draws, S × n.
    - `moves`: how the mean moves between draws, in units of the noise: S × n, with Hᵢⱼ = Σ_s moves_si moves_sj.
    - `sensitivity`: how much the mean changes with the linear predictor, in units of the noise, n rows: the weight of a row.
    - `classes`: whether y is the indicator of a class, which has no variance of its own.
    """

    values: np.ndarray
    fitted: np.ndarray
    replicates: np.ndarray
    moves: np.ndarray
    sensitivity: np.ndarray
    classes: bool = False

    @functools.cached_property
    def _fitted_directions(self) -> np.ndarray:
        """Orthonormal directions, n × rank, in which the model follows the responses."""
        short = self.moves.shape[0] < self.moves.shape[1]
        values, vectors = linalg.eigh(self.moves @ self.moves.T if short else self.moves.T @ self.moves)
        kept = values > FITTED
        return self.moves.T @ vectors[:, kept] / np.sqrt(values[kept]) if short else vectors[:, kept]

    @functools.cached_property
    def leverages(self) -> np.ndarray:
        """Hᵢᵢ: the share of its own noise that the fit follows in each row."""
        return np.minimum(np.sum(self.moves**2, axis=0), 1.0)

    @functools.cached_property
    def inflation(self) -> float:
        """Pearson's χ² per degree of freedom where it is above 1: noise that the model lacks must not look like structure."""
        freedom = self.values.size - float(self.leverages.sum())
        return 1.0 if self.classes or freedom < 1 else max(1.0, float(np.sum(self.values**2)) / freedom)

    def left(self, candidates: np.ndarray) -> np.ndarray:
        """Candidates, n × count, weighted, without the fitted directions and with unit length; 0 where nothing is left."""
        Q, Z = self._fitted_directions, self.sensitivity[:, None] * candidates
        Z = Z / np.maximum(np.linalg.norm(Z, axis=0), 1e-300)
        Z = Z - Q @ (Q.T @ Z)
        size = np.linalg.norm(Z, axis=0)
        return np.where(size**2 > LEAST_LEFT, Z / np.maximum(size, 1e-300), 0.0)

    def without_fitted(self, replicates: np.ndarray) -> np.ndarray:
        """Residuals as they would be had the model been fitted to them: … × n, without the fitted directions."""
        Q = self._fitted_directions
        return replicates - (replicates @ Q) @ Q.T

    def each(self, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Test each candidate column by itself: (statistics, p), a statistic per column that is χ² with one degree of freedom."""
        Z = self.left(candidates)
        found = (Z.T @ self.values) ** 2 / self.inflation
        repeated = (self.replicates @ Z) ** 2
        p = np.array([chance(x, t, 1) for x, t in zip(found, repeated.T, strict=True)])
        return found, np.where(np.any(Z, axis=0), p, 1.0)

    def together(self, candidates: np.ndarray) -> tuple[float, float]:
        """Test some candidate columns together: (statistic, p), the statistic χ² with one degree per column that is left."""
        Z = self.left(candidates)
        U, size, _ = np.linalg.svd(Z[:, np.any(Z, axis=0)], full_matrices=False)
        basis = U[:, size > 0.01]
        if not basis.shape[1]:
            return 0.0, 1.0
        found = float(np.sum((basis.T @ self.values) ** 2)) / self.inflation
        repeated = np.sum((self.replicates @ basis) ** 2, axis=1)
        return found, chance(found, repeated, basis.shape[1])


def chance(found: float, repeated: np.ndarray, degrees: int) -> float:
    """P(χ² ≥ found), with the law widened to the mean and variance of the replicated statistics where these are larger."""
    mean, variance = float(repeated.mean()), float(repeated.var(ddof=1))
    plain = special.chdtrc(degrees, found)
    if mean <= 0 or variance <= 0:
        return float(plain)
    scale, matched = variance / (2 * mean), 2 * mean**2 / variance
    return float(max(plain, special.chdtrc(matched, found / scale)))


def residuals(law: Predictive, y: np.ndarray, replicates: np.ndarray) -> list[ModelResiduals]:
    """The residuals of every output: one, or one for each class where there are more than two.

    **Arguments:**

    - `law`: of the rows; `y`: n observed responses; `replicates`: S × n responses drawn from the law.
    """
    if law.mean.ndim == 2:
        classes = law.kind is ResponseKind.CLASSES
        return [_of_output(law.mean, law.variance, y, replicates, law.t, classes)]
    outputs = range(law.mean.shape[2])
    return [_of_output(law.mean[..., c], law.variance[..., c], y == c, replicates == c, None, True) for c in outputs]


def _of_output(mean: np.ndarray, variance: np.ndarray, y: np.ndarray, replicates: np.ndarray, t, classes: bool):
    """The residuals of one output; `t`: its linear predictors, None where it has several."""
    center = mean.mean(axis=0)
    sd = np.sqrt(np.maximum(np.median(variance, axis=0), 1e-300))  # a mean may be that of a few draws with heavy tails
    moves = mean - center
    moves /= sd
    moves /= np.sqrt(len(mean) - 1)
    noise = np.maximum(variance, 1e-300)
    np.sqrt(noise, out=noise)
    repeated = replicates - mean
    repeated /= noise
    del noise
    sensitivity = sd
    if t is not None:
        steps = t.std(axis=0)
        sensitivity = np.where(steps > 0, mean.std(axis=0) / np.maximum(steps, 1e-300) / sd, 1.0)
    return ModelResiduals((y - center) / sd, center, repeated, moves, sensitivity, classes)
