"""A posterior as draws of θ, and what it says about new rows: E[h] ≈ the mean of h(θ_s) over draws.

Draws from independent chains in; predictions in the user's units out: the expectation, its Monte Carlo error (which more steps
reduce), its posterior spread (which more data reduce) and the noise of one observation (which nothing reduces), each apart. Plain
arrays, so that it can be pickled.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import special

from gyromc.checks import numbers, require
from gyromc.records import Renamed
from gyromc.regression.units import Units
from gyromc.targets.likelihoods import Likelihood

__all__ = ["Draws", "Predictions"]

AT_ONCE = 2_000_000  # numbers held while predicting


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """What the posterior expects of y at some rows: vectors, or rows × classes of probabilities.

    **Attributes:**

    - `mean`: E[y | x], for classes their probabilities.
    - `std_error`: the Monte Carlo standard error of `mean`; more effort makes it smaller.
    - `spread`: the posterior standard deviation of E[y | x, θ]; more data make it smaller.
    - `noise`: the standard deviation of y about E[y | x, θ]; nothing makes it smaller.
    """

    mean: np.ndarray
    std_error: np.ndarray
    spread: np.ndarray
    noise: np.ndarray

    mc_error = Renamed("std_error")

    @property
    def sd(self) -> np.ndarray:
        """The predictive standard deviation of one observation: spread and noise together."""
        return np.hypot(self.spread, self.noise)


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Draws of θ, all of the same weight.

    **Attributes:**

    - `likelihood`, `units`: the model, and how standardised columns belong to the user's.
    - `theta`: chains × draws × dim, in standardised coordinates.
    - `given`: what else the law of y depends on (σ of a linear model), each chains × draws, in the user's units.
    """

    likelihood: Likelihood
    units: Units
    theta: np.ndarray
    given: tuple[np.ndarray, ...] = ()

    @property
    def count(self) -> int:
        """How many draws there are, of all chains."""
        return self.theta.shape[0] * self.theta.shape[1]

    @property
    def weights(self) -> np.ndarray:
        """Ones, chains × draws: earlier versions weighted draws."""
        return np.ones(self.theta.shape[:2])

    @property
    def num_columns(self) -> int:
        """How many columns a row has, the intercept's not counted."""
        return len(self.units.scale)

    def coefficients(self) -> np.ndarray:
        """The draws as coefficients in the user's units: chains × draws × coefficients."""
        T, offset = self.units.coefficients(self.likelihood.basis)
        return self.theta @ T.T + offset

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean over draws of values, chains × draws × …, and its standard error from the spread between chains."""
        mean = np.mean(values, axis=(0, 1))
        by_chain = np.mean(values - mean, axis=1)
        return mean, np.sqrt(np.sum(by_chain**2, axis=0) / (len(by_chain) - 1) / len(by_chain))

    def spreads(self) -> np.ndarray:
        """The posterior standard deviation of each coefficient."""
        draws = self.coefficients()
        return np.sqrt(self.average((draws - self.average(draws)[0]) ** 2)[0])

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """Quantiles of each coefficient: levels × coefficients."""
        draws = self.coefficients()
        return np.quantile(draws.reshape(-1, draws.shape[-1]), levels, axis=0, method="hazen")

    def predict(self, X) -> Predictions:
        """What the posterior expects of y at each row of X."""
        parts = [self._predict(rows) for rows in self._chunks(self._rows(X))]
        return Predictions(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def log_densities(self, X, y: np.ndarray) -> np.ndarray:
        """log p(y | x) at each row, θ averaged out: for classes the log of the predictive probability of the class that came."""
        found, first = [], 0
        for rows in self._chunks(self._rows(X)):
            t, given = self._predictors(rows)
            densities = self.likelihood.log_density(t, y[first : first + len(rows)], *given)
            found.append(special.logsumexp(densities, axis=(0, 1)) - np.log(self.count))
            first += len(rows)
        return np.concatenate(found)

    def predictors(self, X) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given): what `likelihood` takes for the law of y at the rows of X, for every draw, in the user's units.

        `t` is chains × draws × rows (× q where a row has several linear predictors), and each of `given` broadcasts with chains
        × draws × rows. So `likelihood.sample(rng, t, *given)` are responses as the posterior expects them.
        """
        return self._predictors(self._rows(X))

    def thinned(self, count: int) -> "Draws":
        """At most about so many draws, evenly spaced in every chain."""
        step = max(1, -(-self.count // count))
        return dataclasses.replace(self, theta=self.theta[:, ::step], given=tuple(g[:, ::step] for g in self.given))

    def _rows(self, X) -> np.ndarray:
        X = numbers(X, "X")
        require(
            X.ndim == 2 and X.shape[1] == self.num_columns,
            f"`X` must have {self.num_columns} columns, as in the fit: got shape {X.shape}.",
        )
        return self.units.rows(X)

    def _chunks(self, rows: np.ndarray) -> list[np.ndarray]:
        at_once = max(1, AT_ONCE // (self.count * max(self.likelihood.outputs + 1, 2)))
        return [rows[first : first + at_once] for first in range(0, max(1, len(rows)), at_once)]

    def _predictors(self, rows: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given) at standardised rows."""
        if self.likelihood.outputs > 1:
            blocks = self.theta.reshape(*self.theta.shape[:2], self.likelihood.outputs, -1)
            return np.swapaxes(blocks @ rows.T, -1, -2), ()
        t = self.units.y_center + self.units.y_scale * (self.theta @ rows.T)
        return t, tuple(g[..., None] for g in self.given)

    def _predict(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        t, given = self._predictors(rows)
        means = self.likelihood.mean(t, *given)
        mean, error = self.average(means)
        variance = np.maximum(0.0, self.average((means - mean) ** 2)[0])
        noise = self.average(self.likelihood.variance(means, *given))[0]
        return mean, error, np.sqrt(variance), np.sqrt(noise)
