"""A posterior as weighted draws of θ, and what it says about new rows: E[h] ≈ Σ_s w_s h(θ_s), an average (E4) with its error.

Receives draws from independent chains and weights that take the step size's bias off; hands on predictions in the user's units:
the expectation, its Monte Carlo error (which more steps reduce), its posterior spread (which more data reduce) and the noise of
one observation (which nothing reduces), each apart. Plain arrays, so that it can be pickled.
"""

import dataclasses

import numpy as np
from scipy import linalg, special

from gyromc.checks import numbers, require
from gyromc.regression.families import Family, Linear
from gyromc.regression.gaussian import Gaussian
from gyromc.regression.problem import Problem
from gyromc.regression.units import Units

__all__ = ["Posterior", "Predictions", "bias_weights"]

AT_ONCE = 2_000_000  # numbers held while predicting
MOST_WORK = 2e7  # draws × rows × linear predictors looked at for the weights


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """What the posterior expects of y at some rows: vectors, or rows × classes of probabilities.

    **Attributes:**

    - `mean`: E[y | x], for classes their probabilities.
    - `mc_error`: the Monte Carlo standard error of `mean`; more effort makes it smaller.
    - `spread`: the posterior standard deviation of E[y | x, θ]; more data make it smaller.
    - `noise`: the standard deviation of y about E[y | x, θ]; nothing makes it smaller.
    """

    mean: np.ndarray
    mc_error: np.ndarray
    spread: np.ndarray
    noise: np.ndarray

    @property
    def sd(self) -> np.ndarray:
        """The predictive standard deviation of one observation: spread and noise together."""
        return np.hypot(self.spread, self.noise)


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """Draws of θ with weights.

    **Attributes:**

    - `family`, `units`: the model, and how standardised columns belong to the user's.
    - `theta`: chains × draws × dim, in standardised coordinates.
    - `weights`: chains × draws, with mean 1.
    """

    family: Family
    units: Units
    theta: np.ndarray
    weights: np.ndarray

    @property
    def num_columns(self) -> int:
        """How many columns a row has, the intercept's not counted."""
        return len(self.units.scale)

    def coefficients(self) -> np.ndarray:
        """The draws as coefficients in the user's units: chains × draws × coefficients."""
        T, offset = self.units.coefficients(self.family.basis)
        return self.theta @ T.T + offset

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The weighted mean over draws of values, chains × draws × …, and its standard error from the spread between chains."""
        w = self.weights.reshape(self.weights.shape + (1,) * (values.ndim - 2))
        mean = np.mean(w * values, axis=(0, 1))
        by_chain = np.mean(w * (values - mean), axis=1)
        return mean, np.sqrt(np.sum(by_chain**2, axis=0) / (len(by_chain) - 1) / len(by_chain))

    def spreads(self) -> np.ndarray:
        """The posterior standard deviation of each coefficient."""
        draws = self.coefficients()
        return np.sqrt(self.average((draws - self.average(draws)[0]) ** 2)[0])

    def predict(self, X) -> Predictions:
        """What the posterior expects of y at each row of X.

        **Arguments:**

        - `X`: rows × columns, in the user's units.

        **Returns:** `Predictions`.
        """
        parts = [self._predict(rows) for rows in self._chunks(self._rows(X))]
        return Predictions(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def log_densities(self, X, y: np.ndarray) -> np.ndarray:
        """log p(y | x) at each row, θ averaged out: for classes the log of the predictive probability of the class that came."""
        y = (y - self.units.y_center) / (self.units.y_scale * self.units.noise) if self._linear else y
        found, first = [], 0
        for rows in self._chunks(self._rows(X)):
            part = y[first : first + len(rows)]
            losses = self.family.losses(self._predictors(rows), part)
            found.append(special.logsumexp(-losses, axis=(0, 1), b=self.weights[..., None] / self.weights.size))
            first += len(rows)
        scale = np.log(self.units.y_scale * self.units.noise) if self._linear else 0.0
        return np.concatenate(found) - self.family.constants(y) - scale

    @property
    def _linear(self) -> bool:
        return isinstance(self.family, Linear)

    def _rows(self, X) -> np.ndarray:
        X = numbers(X, "X")
        require(
            X.ndim == 2 and X.shape[1] == self.num_columns,
            f"`X` must have {self.num_columns} columns, as in the fit: got shape {X.shape}.",
        )
        return self.units.rows(X)

    def _chunks(self, rows: np.ndarray) -> list[np.ndarray]:
        at_once = max(1, AT_ONCE // (self.weights.size * max(self.family.outputs + 1, 2)))
        return [rows[first : first + at_once] for first in range(0, max(1, len(rows)), at_once)]

    def _predictors(self, rows: np.ndarray) -> np.ndarray:
        """Linear predictors, chains × draws × rows × q, in units of the noise for a linear model."""
        blocks = self.theta.reshape(*self.theta.shape[:2], self.family.outputs, -1)
        return np.swapaxes(blocks @ rows.T, -1, -2) / self.units.noise

    def _predict(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        means = self.family.means(self._predictors(rows))
        mean, error = self.average(means)
        variance = np.maximum(0.0, self.average((means - mean) ** 2)[0])
        noise = self.average(self.family.noise(means))[0]
        unit = self.units.y_scale * self.units.noise if self._linear else 1.0
        offset = self.units.y_center if self._linear else 0.0
        return offset + unit * mean, unit * error, unit * np.sqrt(variance), unit * np.sqrt(noise)


def bias_weights(problem: Problem, shape: Gaussian, theta: np.ndarray, inflation: float) -> np.ndarray:
    """Weights that take Euler-Maruyama's bias off draws of θ: chains × draws, with mean 1.

    With D = K⁻¹ and Q = 0 the chain's law is exp(-U)(1 + η f) to first order, f = ¼∇UᵀD∇U - ½tr(D∇²U) (the bias of T4 for all
    observables at once), so exp(-ηf) takes it off; on a Gaussian exp(-ηf) is exact for every η. η enters by way of the
    `inflation` that it causes on a Gaussian, η/4 = ½(1 - 1/inflation), which counts mini-batches and momentum in.

    **Arguments:**

    - `problem`: for U; for very many rows it is taken as quadratic, which it then is.
    - `shape`: for D = K⁻¹.
    - `theta`: chains × draws × dim.
    - `inflation`: of the variance, on a Gaussian.
    """
    rows = theta.reshape(-1, problem.dim)
    if len(rows) * len(problem.y) * problem.family.outputs > MOST_WORK:
        f = np.sum(linalg.solve_triangular(shape.root, (rows - shape.mean).T) ** 2, axis=0)
    else:
        chunk = max(1, int(1e6 // len(problem.y)))
        f = np.concatenate([_excess(problem, shape, rows[i : i + chunk]) for i in range(0, len(rows), chunk)])
    log_weights = -0.5 * (1 - 1 / inflation) * (f - f.mean())
    weights = np.exp(log_weights - log_weights.max())
    return (weights / weights.mean()).reshape(theta.shape[:-1])


def _excess(problem: Problem, shape: Gaussian, theta: np.ndarray) -> np.ndarray:
    """4f = ∇UᵀK⁻¹∇U - 2 tr(K⁻¹∇²U), up to a constant."""
    slope = problem.gradients(theta) @ shape.root
    q, p = problem.family.outputs, problem.X.shape[1]
    K_inverse = (shape.root @ shape.root.T).reshape(q, p, q, p)
    leverage = np.stack(
        [
            np.einsum("ni,ij,nj->n", problem.X, K_inverse[a, :, b], problem.X, optimize=True)
            for a in range(q)
            for b in range(q)
        ],
        axis=1,
    ).reshape(len(problem.y), q, q)
    trace = np.einsum("snab,nab->s", problem.family.curvatures(problem.predictors(theta)), leverage, optimize=True)
    return np.sum(slope**2, axis=1) - 2 * trace
